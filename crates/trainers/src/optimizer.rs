//! The optimizer that options describe: its halves, their rates, and where whole matrices meet.

use std::ops::Range;

use burnish_config as config;
use burnish_core::{Parameter, Registry};
use burnish_models::Parallel;
use burnish_ops::{NewtonSchulz, Polynomials};
use burnish_optim::{AdamWOptions, MomentumDtype, MuonOptions, Optimizer, Rates, Scale, Variant};
use burnish_zero::{Exchange, Matrix, Plan, Stage, Work};

use crate::TrainError;
use crate::rank::Rank;

/// AdamW's half.
pub(crate) fn adamw(options: &config::TrainingOptions) -> AdamWOptions {
    AdamWOptions {
        beta1: options.adam_beta1,
        beta2: options.adam_beta2,
        eps: options.adam_epsilon,
        weight_decay: options.weight_decay,
        decoupled: options.optim != config::Optimizer::Adam,
    }
}

/// Muon's half, if there is one.
pub(crate) fn muon(options: &config::TrainingOptions, muon: &config::MuonOptions) -> Option<MuonOptions> {
    (options.optim == config::Optimizer::Muon).then(|| MuonOptions {
        momentum: muon.muon_momentum,
        nesterov: muon.muon_nesterov,
        weight_decay: options.weight_decay,
        newton_schulz: NewtonSchulz {
            polynomials: match muon.muon_ns_coefficients {
                config::MuonCoefficients::Quintic => Polynomials::Quintic,
                config::MuonCoefficients::PolarExpress => Polynomials::PolarExpress,
            },
            steps: muon.muon_ns_steps,
            ..NewtonSchulz::default()
        },
        scale: match muon.muon_scale {
            config::MuonScale::MatchRmsAdamw => Scale::MatchRmsAdamw,
            config::MuonScale::Original => Scale::Original,
            config::MuonScale::Spectral => Scale::Spectral,
        },
        variant: match muon.muon_variant {
            config::MuonVariant::Muon => Variant::Muon,
            config::MuonVariant::NorMuon => Variant::NorMuon,
            config::MuonVariant::AdaMuon => Variant::AdaMuon,
        },
        beta2: muon.muon_beta2,
        momentum_dtype: match muon.muon_momentum_dtype {
            config::SlotDtype::Float32 => MomentumDtype::F32,
            config::SlotDtype::Bfloat16 => MomentumDtype::Bf16Stochastic,
        },
        seed: options.seed,
        adapters: muon.muon_adapters,
        ..MuonOptions::default()
    })
}

/// The highest rates; the schedule multiplies both.
pub(crate) fn peaks(options: &config::TrainingOptions, muon: &config::MuonOptions) -> Rates {
    let or = |rate: Option<f64>| rate.unwrap_or(options.learning_rate);
    Rates { adam: or(muon.adam_lr), muon: or(muon.muon_lr) }
}

/// What orthogonalising a parameter costs, if Muon takes it: of its logical shape, the same on every rank.
pub(crate) fn work(muon: Option<&MuonOptions>, parameter: &Parameter) -> Option<Work> {
    let muon = muon.filter(|muon| muon.takes(parameter))?;
    let (&columns, rows) = parameter.shape.split_last()?;
    let rows: usize = match (parameter.shape.len(), &parameter.blocks[..]) {
        (2, blocks @ [_, ..]) => {
            return Some(sum(blocks.iter().map(|&rows| flops(muon, rows, columns)), parameter));
        }
        (3, _) => {
            let each = flops(muon, rows[1], columns);
            return Some(sum((0..rows[0]).map(|_| each), parameter));
        }
        _ => rows.iter().product(),
    };
    Some(sum(std::iter::once(flops(muon, rows, columns)), parameter))
}

fn sum(flops: impl Iterator<Item = f64>, parameter: &Parameter) -> Work {
    Work { flops: flops.sum(), elements: parameter.elements() }
}

/// Of the standard form, whatever form runs: it deals matrices out.
fn flops(muon: &MuonOptions, rows: usize, columns: usize) -> f64 {
    let (short, long) = (rows.min(columns) as f64, rows.max(columns) as f64);
    muon.newton_schulz.steps as f64 * (4.0 * long * short * short + 2.0 * short * short * short)
}

/// What a rank holds of the matrices that Muon takes: rows by `plan` for data-parallel rank `dp` of its part by
/// `parallel` for tensor-parallel rank `tp`.
pub(crate) fn holdings(
    global: &Registry,
    muon: &MuonOptions,
    plan: &Plan,
    dp: usize,
    parallel: Option<(&Parallel, usize)>,
) -> Vec<Matrix> {
    let mut matrices = Vec::new();
    for (index, parameter) in global.iter().enumerate() {
        let Some(Work { flops, .. }) = work(Some(muon), parameter) else { continue };
        let columns = parameter.shape.last().copied().unwrap_or(1);
        // Ranges are of dimension 0; the exchange counts every dimension but the last as rows.
        let inner: usize = parameter.shape[1..parameter.shape.len() - 1].iter().product();
        let own = plan.rows(index, dp);
        let all = |range: Range<usize>| std::iter::once(range).collect::<Vec<_>>();
        let (rows, columns) = match parallel {
            None => (all(own), all(0..columns)),
            Some((parallel, tp)) => {
                let placement = parallel.placement(index);
                match (placement.dim(), placement.split()) {
                    (Some(0), Some(split)) => (within(split.pieces(tp), &own), all(0..columns)),
                    (Some(_), Some(split)) => (all(own), split.pieces(tp).to_vec()),
                    _ => (all(own), all(0..columns)),
                }
            }
        };
        let rows = rows.into_iter().map(|r| r.start * inner..r.end * inner).filter(|r| !r.is_empty());
        let (name, shape) = (parameter.name.clone(), parameter.shape.clone());
        matrices.push(Matrix { index, name, shape, flops, rows: rows.collect(), columns });
    }
    matrices
}

/// Where the elements `own` of what `pieces` make together lie in the whole.
fn within(pieces: &[Range<usize>], own: &Range<usize>) -> Vec<Range<usize>> {
    let mut at = 0;
    let mut found = Vec::new();
    for piece in pieces {
        let (start, end) = (own.start.max(at), own.end.min(at + piece.len()));
        if start < end {
            found.push(piece.start + start - at..piece.start + end - at);
        }
        at += piece.len();
    }
    found
}

impl Rank<'_> {
    /// The optimizer of this rank, and how it gets whole matrices. Every rank calls it.
    pub(crate) fn optimizer(&self) -> Result<(Optimizer, Exchange), TrainError> {
        let options = &self.setup.options;
        let local = self.plan.local_registry(self.dp.rank());
        let global = self.exporter.registry();
        let muon = muon(&options.training, &options.muon);
        let parallel = self.parallel.as_deref().map(|parallel| (parallel, self.tp.rank()));
        let matrices =
            muon.map_or_else(Vec::new, |muon| holdings(global, &muon, &self.plan, self.dp.rank(), parallel));
        // At stage 0 every data-parallel rank has all of it: the ranks that share layers meet among themselves.
        let group = match self.plan.policy().stage {
            Stage::Zero => self.tp.group(),
            _ => &self.world,
        };
        let most = self.plan.policy().bucket_elements;
        let exchange = Exchange::new(group, &self.device, matrices, most)?;
        let adam = adamw(&options.training);
        let optimizer = match muon {
            None => Optimizer::adamw(&local, adam),
            Some(muon) => Optimizer::muon(&local, global, muon, adam, &|index| exchange.owns(index))?,
        };
        Ok((optimizer, exchange))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_part_are_found_in_the_whole() {
        let pieces = [4..8, 20..24];
        assert_eq!(within(&pieces, &(0..8)), pieces);
        assert_eq!(within(&pieces, &(2..6)), [6..8, 20..22]);
        assert!(within(&pieces, &(5..6)).into_iter().eq(std::iter::once(21..22)));
        assert!(within(&pieces, &(0..0)).is_empty());
    }
}
