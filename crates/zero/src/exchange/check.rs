//! Checks of the matrix exchange: ranks announce the pieces they hold, and what they bring is compared with it.

use std::collections::BTreeMap;

use burnish_comm::{Bucket, Group, Reduction};
use burnish_core::Dtype;
use burnish_ops::AnyTensor;

use super::matrix::{decode, encode};
use super::{ExchangeError, Matrix, MatrixAllToAll};
use crate::ZeroError;

/// What every rank holds.
pub(super) fn announce(group: &Group, matrices: &[Matrix]) -> Result<Vec<Vec<Matrix>>, ZeroError> {
    let mine = encode(matrices);
    let one = vec![1; group.size()];
    let lengths =
        group.all_gather_v(Bucket::new(vec![mine.len() as u64]), &one, "matrices: lengths").wait()?;
    let lengths: Vec<usize> = lengths.iter().map(|part| part[0] as usize).collect();
    let all = group.all_gather_v(Bucket::new(mine), &lengths, "matrices: holdings").wait()?;
    let understood = |words| decode(words).expect("invariant: every rank encodes as this one does");
    Ok(all.iter().map(understood).collect())
}

impl MatrixAllToAll {
    /// Tells which matrices have a gradient, and that all holders agree.
    pub(super) fn presence(
        &self,
        pieces: &BTreeMap<usize, AnyTensor>,
        wrong: Option<(usize, ExchangeError)>,
    ) -> Result<Vec<bool>, ZeroError> {
        let given = |at: usize| pieces.contains_key(&at);
        if !self.routes.moves() {
            return match wrong {
                Some((_, error)) => Err(error.into()),
                None => Ok((0..self.matrices.len()).map(given).collect()),
            };
        }
        // Per matrix: whether a rank brings a piece; 1 if a rank that holds some brings none, 2 if it brings a wrong one.
        let spoiled = wrong.as_ref().map(|(at, _)| *at);
        let flags: Vec<u8> = (0..self.matrices.len())
            .flat_map(|at| {
                let fault = match () {
                    () if spoiled == Some(at) => 2,
                    () if !given(at) && self.matrices[at].holds_some() => 1,
                    () => 0,
                };
                [u8::from(given(at)), fault]
            })
            .collect();
        let all = self
            .group
            .all_reduce(Bucket::new(flags.clone()), Reduction::Max, "matrices with a gradient")
            .wait()?
            .into_vec();
        let faulty = |at: usize| all[2 * at + 1] == 2 || (all[2 * at] == 1 && all[2 * at + 1] == 1);
        let Some(at) = (0..self.matrices.len()).find(|&at| faulty(at)) else {
            return Ok(all.iter().step_by(2).map(|&given| given == 1).collect());
        };
        let counts = vec![2; self.group.size()];
        let mine = Bucket::new(flags[2 * at..2 * at + 2].to_vec());
        let each = self.group.all_gather_v(mine, &counts, &self.matrices[at].name).wait()?;
        let ranks = |byte: usize, value: u8| -> Vec<usize> {
            let members = (0..self.group.size()).filter(|&r| each.of(r)[byte] == value);
            members.filter_map(|member| self.group.global_rank(member)).collect()
        };
        let matrix = self.matrices[at].name.clone();
        let (given, lacking, ranks) = (ranks(0, 1), ranks(1, 1), ranks(1, 2));
        Err(match wrong {
            Some((here, error)) if here == at => error,
            _ if !ranks.is_empty() => ExchangeError::Spoiled { matrix, ranks },
            _ => ExchangeError::Lacking { matrix, given, lacking },
        }
        .into())
    }

    /// The pieces by matrix, and the first that is not as announced.
    #[expect(clippy::type_complexity, reason = "a map and the first fault")]
    pub(super) fn sorted(
        &self,
        pieces: Vec<(usize, AnyTensor)>,
    ) -> Result<(BTreeMap<usize, AnyTensor>, Option<(usize, ExchangeError)>), ZeroError> {
        let (mut sorted, mut wrong) = (BTreeMap::new(), None);
        for (index, piece) in pieces {
            if piece.shape().contains(&0) {
                continue;
            }
            let Some(at) = self.routes.at(index) else {
                return Err(ExchangeError::Unknown { index, matrices: self.matrices.len() }.into());
            };
            let (matrix, got) = (&self.matrices[at], piece.shape());
            let [rows, columns] = matrix.held();
            let fits = got.last() == Some(&columns) && got.iter().product::<usize>() == rows * columns;
            match piece.dtype() {
                Some(Dtype::F32) if fits => {
                    sorted.insert(at, piece);
                }
                dtype => {
                    wrong.get_or_insert_with(|| {
                        let expected = vec![rows, columns];
                        let matrix = matrix.name.clone();
                        (at, ExchangeError::Piece { matrix, what: "its piece", got, dtype, expected })
                    });
                }
            }
        }
        Ok((sorted, wrong))
    }

    /// The whole matrices that the optimizer gives back, which are those that it was given.
    pub(super) fn returned(
        &self,
        whole: Vec<(usize, AnyTensor)>,
        present: &[bool],
    ) -> Result<BTreeMap<usize, AnyTensor>, ZeroError> {
        let owned = |at: usize| present[at] && self.routes.routes[at].owner == self.group.rank();
        let mut returned = BTreeMap::new();
        for (index, value) in whole {
            let Some(at) = self.routes.at(index).filter(|&at| owned(at)) else {
                return Err(ExchangeError::Unknown { index, matrices: self.matrices.len() }.into());
            };
            let (got, dtype, expected) = (value.shape(), value.dtype(), self.matrices[at].shape.clone());
            if got != expected || dtype != Some(Dtype::F32) {
                let (matrix, what) = (self.matrices[at].name.clone(), "the whole matrix");
                return Err(ExchangeError::Piece { matrix, what, got, dtype, expected }.into());
            }
            returned.insert(at, value);
        }
        match (0..self.matrices.len()).find(|at| owned(*at) && !returned.contains_key(at)) {
            Some(at) => {
                let (matrix, what) = (self.matrices[at].name.clone(), "gathered and not scattered");
                Err(ExchangeError::Turn { matrix, what }.into())
            }
            None => Ok(returned),
        }
    }
}
