//! Public name of a folder: that of the repository on the hub whose snapshot it is, or its path.

use std::path::Path;

use burnish_hub::Repo;

/// The name for what is published: model cards, an adapter's configuration.
pub(crate) fn public_name(folder: &Path) -> String {
    Repo::of_snapshot(folder).map_or_else(|| folder.display().to_string(), |repo| repo.name().to_owned())
}
