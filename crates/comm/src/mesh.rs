//! Ranks as a grid with named axes.

use crate::{CommError, Group, World};

/// The world's ranks as a grid with named axes; the last axis varies fastest. A rank has one group per axis: the ranks
/// that share its place on all other axes.
///
/// ```
/// use burnish_comm::{Mesh, local};
///
/// let groups = local::run(4, |world| {
///     let mesh = Mesh::new(&world, &[("dp", 2), ("tp", 2)]).unwrap();
///     mesh.group("dp").unwrap().global_ranks().to_vec()
/// });
/// assert_eq!(groups[3].as_ref().unwrap(), &[1, 3]);
/// ```
#[derive(Clone, Debug)]
pub struct Mesh {
    axes: Vec<(String, usize)>,
    index: Vec<usize>,
    groups: Vec<Group>,
    world: Group,
}

impl Mesh {
    /// The mesh with `axes` (name, number of ranks), slowest first.
    ///
    /// # Errors
    /// An axis named twice; sizes whose product is not the number of ranks.
    pub fn new(world: &World, axes: &[(&str, usize)]) -> Result<Self, CommError> {
        for (at, (axis, _)) in axes.iter().enumerate() {
            if axes[..at].iter().any(|(other, _)| other == axis) {
                return Err(CommError::MeshTwice { axis: (*axis).to_owned() });
            }
        }
        let ranks = axes.iter().map(|(_, size)| size).product();
        if ranks != world.size() {
            return Err(CommError::MeshSize { axes: written(axes), ranks, world: world.size() });
        }
        let mut index = vec![0; axes.len()];
        let mut groups = Vec::with_capacity(axes.len());
        let mut stride = ranks;
        for (at, &(axis, size)) in axes.iter().enumerate() {
            stride /= size;
            index[at] = world.rank() / stride % size;
            let first = world.rank() - index[at] * stride;
            let members = (0..size).map(|member| first + member * stride).collect();
            groups.push(world.group_of(axis, members, index[at]));
        }
        let axes = axes.iter().map(|&(axis, size)| (axis.to_owned(), size)).collect();
        Ok(Self { axes, index, groups, world: world.group() })
    }

    /// This rank's group along `axis`.
    ///
    /// # Errors
    /// [`CommError::MeshAxis`] if there is no such axis.
    pub fn group(&self, axis: &str) -> Result<Group, CommError> {
        Ok(self.groups[self.place(axis)?].clone())
    }

    /// This rank's place along `axis`.
    ///
    /// # Errors
    /// [`CommError::MeshAxis`] if there is no such axis.
    pub fn index(&self, axis: &str) -> Result<usize, CommError> {
        Ok(self.index[self.place(axis)?])
    }

    /// The group of all ranks.
    #[must_use]
    pub fn world(&self) -> Group {
        self.world.clone()
    }

    /// Names and sizes of the axes, slowest first.
    pub fn axes(&self) -> impl Iterator<Item = (&str, usize)> {
        self.axes.iter().map(|(axis, size)| (axis.as_str(), *size))
    }

    fn place(&self, axis: &str) -> Result<usize, CommError> {
        self.axes.iter().position(|(name, _)| name == axis).ok_or_else(|| {
            let axes: Vec<(&str, usize)> = self.axes().collect();
            CommError::MeshAxis { axis: axis.to_owned(), known: written(&axes) }
        })
    }
}

fn written(axes: &[(&str, usize)]) -> String {
    axes.iter().map(|(axis, size)| format!("{axis} = {size}")).collect::<Vec<_>>().join(", ")
}
