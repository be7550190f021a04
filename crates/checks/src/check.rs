//! `Check`, a named comparison of a device with the reference, and the list of all of them.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result};
use burn::tensor::Device;
use burnish_device::DeviceKind;

use crate::{Row, Tolerance, Verdict};

/// What checks are given.
pub struct Context {
    /// What is checked.
    pub device: Device,
    /// Its kind.
    pub kind: DeviceKind,
    /// Folder with `examples` and `fixtures`: the repository's own, or those of a bundle.
    pub data: PathBuf,
    /// Whether to run the short forms of long checks.
    pub quick: bool,
}

impl Context {
    /// The bounds for this device.
    #[must_use]
    pub fn tolerance(&self) -> Tolerance {
        Tolerance::of(self.kind)
    }

    /// Leaves a check out where the device has no bf16.
    pub(crate) fn has_half(&self) -> Result<()> {
        if self.kind == DeviceKind::Wgpu {
            Err(LeftOut("WebGPU has no bf16".to_owned()).into())
        } else {
            Ok(())
        }
    }

    /// A file or folder of the data.
    ///
    /// # Errors
    /// If it is not there.
    pub(crate) fn data(&self, name: &str) -> Result<PathBuf> {
        let path = self.data.join(name);
        anyhow::ensure!(
            path.exists(),
            "{}: not there; --data names the folder that holds it",
            path.display()
        );
        Ok(path)
    }

    /// Recorded runs and their models.
    pub(crate) fn fixtures(&self) -> Result<PathBuf> {
        // In the repository they are beside the tests that use them too.
        let own = Path::new("crates/trainers/tests/fixtures");
        if self.data.join(own).is_dir() { Ok(self.data.join(own)) } else { self.data("fixtures") }
    }
}

type Run = Box<dyn Fn(&Context) -> Result<String>>;

/// One check.
pub struct Check {
    /// `operation`, `decoding`, `TRL`, `ranks`, `resume`, `nccl`, `memory`.
    pub group: &'static str,
    /// What it is about.
    pub name: String,
    run: Run,
}

/// An error that says that a check does not apply.
#[derive(Debug)]
pub(crate) struct LeftOut(pub(crate) String);

impl std::fmt::Display for LeftOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LeftOut {}

impl Check {
    pub(crate) fn new(
        group: &'static str,
        name: impl Into<String>,
        run: impl Fn(&Context) -> Result<String> + 'static,
    ) -> Self {
        Self { group, name: name.into(), run: Box::new(run) }
    }

    /// Runs it. A panic is a failure of this check only.
    #[must_use]
    pub fn row(&self, context: &Context) -> Row {
        let begun = Instant::now();
        let verdict = match catch_unwind(AssertUnwindSafe(|| (self.run)(context))) {
            Ok(Ok(figure)) => Verdict::Passed(figure),
            Ok(Err(error)) => match error.downcast::<LeftOut>() {
                Ok(LeftOut(why)) => Verdict::LeftOut(why),
                Err(error) => Verdict::Failed(format!("{error:#}")),
            },
            Err(panic) => Verdict::Failed(format!("panicked: {}", words(&*panic))),
        };
        Row { group: self.group, name: self.name.clone(), verdict, seconds: begun.elapsed().as_secs_f64() }
    }
}

/// What a panic says, on one line, without its backtrace.
fn words(panic: &(dyn Any + Send)) -> String {
    /// Characters at most.
    const MOST: usize = 1000;
    let text =
        panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    let lines = text.unwrap_or_default().lines().map(str::trim);
    let said: Vec<&str> =
        lines.take_while(|line| !line.starts_with("Backtrace")).filter(|line| !line.is_empty()).collect();
    match &said[..] {
        [] => "without words".to_owned(),
        said => said.join(" ").chars().take(MOST).collect(),
    }
}

/// Every check, in the order in which they build on each other.
///
/// # Errors
/// If the recorded runs cannot be listed.
pub fn checks(context: &Context) -> Result<Vec<Check>> {
    let mut all = crate::operations::checks();
    all.extend(crate::decoding::checks(context).context("cannot list the models")?);
    all.extend(crate::trl::checks(context).context("cannot list the recorded runs")?);
    all.extend(crate::ranks::checks());
    all.extend(crate::resume::checks());
    all.extend(crate::nccl::checks());
    all.extend(crate::full::checks());
    all.extend(crate::soak::checks());
    Ok(all)
}
