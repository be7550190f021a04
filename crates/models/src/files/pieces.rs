//! Parameters that files have in several tensors: an expert's matrices, of which a parameter stacks all experts'.

use std::ops::Range;

use burnish_core::{Dtype, Parameter, Role};
use burnish_weight_files::{HostTensor, WeightFileError, WeightFolder};

use crate::spec::names::ExpertFiles;
use crate::{ModelError, Names};

/// A tensor of the files that has some rows of one expert's matrix.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) name: String,
    pub(crate) expert: usize,
    /// Of the expert's matrix.
    pub(crate) rows: Range<usize>,
}

impl Names {
    /// The tensors of a stacked parameter, by expert, then in the order of rows; none where files have it in one.
    pub(crate) fn pieces(&self, parameter: &Parameter) -> Vec<Piece> {
        let ExpertFiles::Apart { experts, modules: [gate, up, down], .. } = self.experts.files else {
            return Vec::new();
        };
        let (Role::Expert, &[count, rows, _]) = (parameter.role, &parameter.shape[..]) else {
            return Vec::new();
        };
        let block = |module: &str| parameter.name.strip_suffix(module).and_then(|b| b.strip_suffix('.'));
        let (block, modules) = match (block(self.experts.gate_up), block(self.experts.down)) {
            (Some(block), _) => (block, vec![(gate, 0..rows / 2), (up, rows / 2..rows)]),
            (None, Some(block)) => (block, vec![(down, 0..rows)]),
            (None, None) => return Vec::new(),
        };
        let piece = |expert: usize, (module, rows): &(&str, Range<usize>)| Piece {
            name: format!("{block}.{experts}.{expert}.{module}.weight"),
            expert,
            rows: rows.clone(),
        };
        (0..count).flat_map(|expert| modules.iter().map(move |module| piece(expert, module))).collect()
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
            ExpertFiles::Same | ExpertFiles::Turned => None,
            ExpertFiles::Apart { router: theirs, .. } => renamed(&router, &format!("{theirs}.weight")),
            ExpertFiles::Together([gate_up, down, theirs]) => renamed(own.gate_up, gate_up)
                .or_else(|| renamed(own.down, down))
                .or_else(|| renamed(&router, theirs)),
        }
        .filter(|name| name != parameter)
    }
}

/// Some experts of a stacked parameter from its pieces, in `store`: `[experts, rows, columns]`. `find` gives a tensor the
/// name that the files have it by.
pub(crate) fn read_pieces(
    weights: &WeightFolder,
    pieces: &[Piece],
    find: &dyn Fn(&str) -> Option<String>,
    parameter: &Parameter,
    experts: Range<usize>,
    store: Dtype,
) -> Result<HostTensor, ModelError> {
    let shape = [experts.len(), parameter.shape[1], parameter.shape[2]];
    let mut bytes = Vec::with_capacity(shape.iter().product::<usize>() * store.bytes());
    for piece in pieces.iter().filter(|piece| experts.contains(&piece.expert)) {
        let name =
            find(&piece.name).ok_or_else(|| ModelError::UnknownParameter { name: piece.name.clone() })?;
        let tensor = weights.read(&name)?;
        let tensor = if tensor.dtype == store { tensor } else { tensor.cast(store) };
        bytes.extend_from_slice(&tensor.bytes);
    }
    let made = HostTensor::new(store, &shape, bytes);
    Ok(made.map_err(|e: WeightFileError| e)?)
}

/// A piece's bytes of what a rank holds, whole experts (`held`, ascending) of a stacked parameter one after another.
pub(crate) fn bytes_of(
    tensor: &HostTensor,
    held: &[Range<usize>],
    piece: &Piece,
    shape: &[usize],
) -> Vec<u8> {
    let before = held.iter().map(|r| r.end.min(piece.expert).saturating_sub(r.start)).sum::<usize>();
    let row = shape[2] * tensor.dtype.bytes();
    let start = (before * shape[1] + piece.rows.start) * row;
    tensor.bytes[start..start + piece.rows.len() * row].to_vec()
}
