//! Parameters that files have in several tensors: matrices of experts, norms of heads, of which a parameter stacks all.

use std::collections::BTreeMap;
use std::ops::Range;

use burnish_core::{Dtype, Parameter, Role};
use burnish_weight_files::{HostTensor, WeightFileError, WeightFolder};

use crate::spec::names::ExpertFiles;
use crate::{ModelError, Names};

/// A tensor of the files that has some rows of one expert's matrix, or one head's norm.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) name: String,
    /// The expert or head.
    pub(crate) at: usize,
    /// Of its matrix; a norm is one.
    pub(crate) rows: Range<usize>,
    /// Its shape in the files.
    pub(crate) shape: Vec<usize>,
}

impl Names {
    /// The tensors of a stacked parameter, by expert or head, then in the order of rows; none where files have it in one.
    pub(crate) fn pieces(&self, parameter: &Parameter) -> Vec<Piece> {
        match (parameter.role, &parameter.shape[..]) {
            (Role::Expert, &[experts, rows, columns]) => self.of_experts(parameter, [experts, rows, columns]),
            (_, &[heads, width]) if self.qk_norms_apart => self.of_heads(parameter, heads, width),
            _ => Vec::new(),
        }
    }

    fn of_experts(&self, parameter: &Parameter, [count, rows, columns]: [usize; 3]) -> Vec<Piece> {
        let ExpertFiles::Apart { experts, modules: [gate, up, down], .. } = self.experts.files else {
            return Vec::new();
        };
        let block = |module: &str| parameter.name.strip_suffix(module).and_then(|b| b.strip_suffix('.'));
        let (block, modules) = match (block(self.experts.gate_up), block(self.experts.down)) {
            (Some(block), _) if gate.is_empty() => (block, vec![(up, 0..rows)]),
            (Some(block), _) => (block, vec![(gate, 0..rows / 2), (up, rows / 2..rows)]),
            (None, Some(block)) => (block, vec![(down, 0..rows)]),
            (None, None) => return Vec::new(),
        };
        let piece = |expert: usize, (module, rows): &(&str, Range<usize>)| Piece {
            name: format!("{block}.{experts}.{expert}.{module}.weight"),
            at: expert,
            rows: rows.clone(),
            shape: vec![rows.len(), columns],
        };
        (0..count).flat_map(|expert| modules.iter().map(move |module| piece(expert, module))).collect()
    }

    fn of_heads(&self, parameter: &Parameter, heads: usize, width: usize) -> Vec<Piece> {
        let Some(module) = parameter.name.strip_suffix(".weight") else { return Vec::new() };
        if !self.qk_norms.iter().any(|norm| module.ends_with(norm)) {
            return Vec::new();
        }
        let name = |head: usize| format!("{module}.norms.{head}.weight");
        (0..heads).map(|at| Piece { name: name(at), at, rows: 0..1, shape: vec![width] }).collect()
    }

    /// What files call a parameter of a mixture that they have in one tensor, but under another name.
    pub(crate) fn of_mixture_in_files(&self, parameter: &str) -> Option<String> {
        let own = &self.experts;
        let router = format!("{}.weight", own.router);
        let renamed = |module: &str, theirs: &str| {
            let block = parameter.strip_suffix(module)?;
            block.ends_with('.').then(|| format!("{block}{theirs}"))
        };
        match own.files {
            ExpertFiles::Same | ExpertFiles::Turned | ExpertFiles::ByShape => None,
            ExpertFiles::Apart { router: theirs, .. } => renamed(&router, &format!("{theirs}.weight")),
            ExpertFiles::Together([gate_up, down, theirs]) => renamed(own.gate_up, gate_up)
                .or_else(|| renamed(own.down, down))
                .or_else(|| renamed(&router, theirs)),
        }
        .filter(|name| name != parameter)
    }
}

/// Some experts or heads of a stacked parameter from its pieces, in `store`. `find` gives a tensor the name that the files
/// have it by.
pub(crate) fn read_pieces(
    weights: &WeightFolder,
    pieces: &[Piece],
    find: &dyn Fn(&str) -> Option<String>,
    parameter: &Parameter,
    wanted: Range<usize>,
    store: Dtype,
) -> Result<HostTensor, ModelError> {
    let mut shape = parameter.shape.clone();
    shape[0] = wanted.len();
    let mut bytes = Vec::with_capacity(shape.iter().product::<usize>() * store.bytes());
    for piece in pieces.iter().filter(|piece| wanted.contains(&piece.at)) {
        let name =
            find(&piece.name).ok_or_else(|| ModelError::UnknownParameter { name: piece.name.clone() })?;
        let tensor = weights.read(&name)?;
        let tensor = if tensor.dtype == store { tensor } else { tensor.cast(store) };
        bytes.extend_from_slice(&tensor.bytes);
    }
    let made = HostTensor::new(store, &shape, bytes);
    Ok(made.map_err(|e: WeightFileError| e)?)
}

/// Parameters while the pieces that files have them in are written, in whatever order: a mixture's two stacks come by turns.
/// Each is asked for once, and kept until its last piece.
pub(crate) struct Stacks<K, V> {
    /// Pieces that are still to come.
    left: BTreeMap<K, usize>,
    held: BTreeMap<K, V>,
}

impl<K: Ord + Clone, V> Stacks<K, V> {
    /// Of the parameter of each piece.
    pub(crate) fn new(pieces: impl IntoIterator<Item = K>) -> Self {
        let mut left = BTreeMap::new();
        pieces.into_iter().for_each(|of| *left.entry(of).or_default() += 1);
        Self { left, held: BTreeMap::new() }
    }

    /// What `take` makes of the parameter of the next piece, which `value` gives the first time.
    pub(crate) fn next<T>(
        &mut self,
        of: K,
        value: impl FnOnce() -> Result<V, ModelError>,
        take: impl FnOnce(&V) -> T,
    ) -> Result<T, ModelError> {
        let whole = match self.held.remove(&of) {
            Some(held) => held,
            None => value()?,
        };
        let taken = take(&whole);
        let left = self.left.entry(of.clone()).or_default();
        *left = left.saturating_sub(1);
        if *left > 0 {
            self.held.insert(of, whole);
        }
        Ok(taken)
    }
}

/// A piece's bytes of what a rank holds, whole experts or heads (`held`, ascending) of a stacked parameter one after
/// another.
pub(crate) fn bytes_of(
    tensor: &HostTensor,
    held: &[Range<usize>],
    piece: &Piece,
    shape: &[usize],
) -> Vec<u8> {
    let before = held.iter().map(|r| r.end.min(piece.at).saturating_sub(r.start)).sum::<usize>();
    let columns = shape.last().copied().unwrap_or_default();
    let row = columns * tensor.dtype.bytes();
    let rows: usize = shape[1..shape.len() - 1].iter().product();
    let start = (before * rows + piece.rows.start) * row;
    tensor.bytes[start..start + piece.rows.len() * row].to_vec()
}
