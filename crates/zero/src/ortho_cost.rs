//! `OrthoCost`: the operations that orthogonalising a parameter takes.

use burnish_core::{Orientation, Parameter};
use burnish_optim::MuonOptions;

use crate::OrthoCost;

impl OrthoCost {
    /// Of a parameter's logical shape, the same on every rank; `None` if Muon does not take it.
    #[must_use]
    pub fn of(muon: &MuonOptions, parameter: &Parameter) -> Option<Self> {
        if !muon.takes(parameter) {
            return None;
        }
        // Of the standard form, whatever form runs: it deals matrices out.
        let flops = |rows: usize, columns: usize| {
            let (short, long) = (rows.min(columns) as f64, rows.max(columns) as f64);
            muon.newton_schulz.steps as f64 * (4.0 * long * short * short + 2.0 * short * short * short)
        };
        let flops = match (&upright(parameter)[..], &parameter.blocks[..]) {
            ([_, columns], blocks @ [_, ..]) => blocks.iter().map(|&rows| flops(rows, *columns)).sum(),
            (&[matrices, rows, columns], _) => matrices as f64 * flops(rows, columns),
            ([rows @ .., columns], _) => flops(rows.iter().product(), *columns),
            ([], _) => return None,
        };
        Some(Self { flops, elements: parameter.elements() })
    }
}

/// The shape of a parameter's matrices as they are orthogonalised, `[out, in]`.
pub(crate) fn upright(parameter: &Parameter) -> Vec<usize> {
    let mut shape = parameter.shape.clone();
    if let (Orientation::InOut, [.., a, b]) = (parameter.orientation, &mut shape[..]) {
        std::mem::swap(a, b);
    }
    shape
}
