//! Matrices that lie in pieces over ranks, whole where they are orthogonalised.
//!
//! At stage 3, and under tensor parallelism, no rank has a whole matrix. What is elementwise (momentum) happens where the
//! rows are; its result goes to the matrix' owner, is orthogonalised there, once, and comes back: per rank and step two
//! all-to-alls of at most `1 / N` of the matrices' elements each (summed over ranks; Dion and torchtitan's `DistMuon` do
//! the same), where gathering gradients and momentum and sending back both costs four times all of them.

mod check;
mod error;
mod matrix;
mod routes;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use burn::tensor::Device;
use burnish_comm::{Bucket, CommError, Gathered, Group, Pending, Traffic};
use burnish_core::Region;
use burnish_ops::AnyTensor;
use burnish_optim::MatrixGather;

pub use error::ExchangeError;
pub use matrix::Matrix;
pub use routes::AllToAllPlan;

use self::check::announce;
use self::routes::Direction;
use crate::ZeroError;
use crate::plan::IN_FLIGHT;

/// A rank's part in bringing matrices together, by [`AllToAllPlan`] that all ranks made alike.
///
/// A matrix that is wholly on its owner, and nowhere else, does not travel; if that is so for all, nothing is communicated.
///
/// ```
/// use burn::tensor::Device;
/// use burnish_comm::local;
/// use burnish_core::Region;
/// use burnish_ops::AnyTensor;
/// use burnish_optim::MatrixGather;
/// use burnish_zero::{MatrixAllToAll, Matrix, ZeroError};
///
/// // A matrix of three rows: two on rank 0, one on rank 1.
/// let ranks = local::run(2, |world| {
///     let (group, device) = (world.group(), Device::flex());
///     let rows = [0..2, 2..3][world.rank()].clone();
///     let piece = AnyTensor::from_elements(vec![1.0_f32; 2 * rows.len()], &[rows.len(), 2], &device);
///     let matrix = Matrix::new(0, "w", 1.0, &Region::rows(&[3, 2], rows));
///     let mut exchange = MatrixAllToAll::new(&group, &device, vec![matrix], 1 << 20)?;
///     let whole = exchange.gather(vec![(0, piece)])?;
///     let doubled = whole.iter().map(|(i, w)| (*i, AnyTensor::new(w.rank::<2>().unwrap() * 2.0))).collect();
///     let back = exchange.scatter(doubled)?;
///     Ok::<_, ZeroError>((whole.len(), back[0].1.to_f32()))
/// });
/// let ranks: Vec<_> = ranks.into_iter().map(|r| r.unwrap().unwrap()).collect();
/// assert_eq!(ranks, [(1, vec![2.0; 4]), (0, vec![2.0; 2])]);
/// ```
pub struct MatrixAllToAll {
    group: Group,
    device: Device,
    matrices: Vec<Matrix>,
    routes: AllToAllPlan,
    /// Between gather and scatter: by matrix, the shape of this rank's piece, and which matrices have one anywhere.
    turn: Option<Turn>,
}

struct Turn {
    present: Vec<bool>,
    shapes: BTreeMap<usize, Vec<usize>>,
}

/// A round on its way, with what it completes: (matrix, values).
type InFlight = (Range<usize>, Option<Pending<Gathered<f32>>>, Vec<(usize, Vec<f32>)>);

impl MatrixAllToAll {
    /// Tells all ranks of `group` what this one holds, and learns what they hold. A round moves at most `most` elements to or
    /// from a rank, or one matrix. Every rank of the group calls it, with the same matrices.
    ///
    /// # Errors
    /// [`ZeroError::MatrixAllToAll`], on every rank alike, if ranks list other matrices or shapes, a range does not fit, or a
    /// part of a matrix is nobody's; if a rank fails.
    pub fn new(
        group: &Group,
        device: &Device,
        matrices: Vec<Matrix>,
        most: usize,
    ) -> Result<Self, ZeroError> {
        let group = group.channel("matrices");
        let holdings = match group.size() {
            1 => vec![matrices.clone()],
            _ => announce(&group, &matrices)?,
        };
        let routes = AllToAllPlan::new(&holdings, most)
            .map_err(|e| e.named(|member| group.global_rank(member).unwrap_or(member)))?;
        Ok(Self { group, device: device.clone(), matrices, routes, turn: None })
    }

    /// Who owns what, and what travels.
    #[must_use]
    pub fn routes(&self) -> &AllToAllPlan {
        &self.routes
    }

    /// Whether this rank orthogonalises the parameter at `index`.
    #[must_use]
    pub fn owns(&self, index: usize) -> bool {
        self.routes.owner(index) == Some(self.group.rank())
    }

    /// What this rank communicates in a step in which every matrix has a gradient.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.routes.traffic(self.group.rank())
    }

    /// Posts a round in one direction: `source` gives the values of a matrix and the target that they are of.
    fn post(
        &self,
        round: &Range<usize>,
        present: &[bool],
        direction: Direction,
        source: impl Fn(usize) -> (burnish_ops::Elements<f32>, Region),
    ) -> Option<Pending<Gathered<f32>>> {
        let (me, world) = (self.group.rank(), self.group.size());
        let travelling =
            || round.clone().filter(|&at| present[at] && direction.elements(&self.routes.routes[at]) > 0);
        travelling().next()?;
        let (mut send, mut receive) = (vec![0; world], vec![0; world]);
        for at in travelling() {
            let [to, from] = direction.counts(&self.routes.routes[at], me, world);
            send.iter_mut().zip(to).for_each(|(sum, n)| *sum += n);
            receive.iter_mut().zip(from).for_each(|(sum, n)| *sum += n);
        }
        let mut next: Vec<usize> = starts(&send);
        let mut packed = vec![0.0_f32; send.iter().sum()];
        for at in travelling() {
            let route = &self.routes.routes[at];
            // The values are asked for only where some of them leave.
            let mut values = None;
            direction.each(route, |cell, from, to| {
                if from == me {
                    let (values, held) = values.get_or_insert_with(|| source(at));
                    let end = next[to] + cell.elements();
                    let part = held.locate(&cell.region);
                    let all = Region::whole(&part.local_shape());
                    part.copy_to(values.as_ref(), &all, &mut packed[next[to]..end]);
                    next[to] = end;
                }
            });
        }
        let what = match direction {
            Direction::Inward => "matrices to owners",
            Direction::Outward => "matrices from owners",
        };
        Some(self.group.all_to_all_v(Bucket::new(packed), &send, &receive, what))
    }

    /// Takes in what a round brings.
    fn wait(
        &self,
        (round, pending, mut values): InFlight,
        present: &[bool],
        direction: Direction,
        out: &mut Vec<(usize, Vec<f32>)>,
    ) -> Result<(), CommError> {
        let me = self.group.rank();
        if let Some(pending) = pending {
            let parts = pending.wait()?;
            let mut next = vec![0; self.group.size()];
            for at in round.filter(|&at| present[at]) {
                let to = values.iter_mut().find(|(matrix, _)| *matrix == at);
                let Some((_, to)) = to else { continue };
                let target = match direction {
                    Direction::Inward => self.matrices[at].whole(),
                    Direction::Outward => self.matrices[at].region.clone(),
                };
                direction.each(&self.routes.routes[at], |cell, from, receiver| {
                    if receiver == me {
                        let end = next[from] + cell.elements();
                        target.locate(&cell.region).place(&parts.of(from)[next[from]..end], to);
                        next[from] = end;
                    }
                });
            }
        }
        out.append(&mut values);
        Ok(())
    }

    /// The cells of a matrix that this rank both holds and owns, copied between whole and piece.
    fn own_cells(&self, at: usize, from: &[f32], held: &Region, to: &mut [f32], target: &Region) {
        let me = self.group.rank();
        for cell in self.routes.routes[at].cells.iter().filter(|cell| cell.holders.contains(&me)) {
            held.locate(&cell.region).copy_to(from, &target.locate(&cell.region), to);
        }
    }
}

impl MatrixGather for MatrixAllToAll {
    type Error = ZeroError;

    fn gather(&mut self, pieces: Vec<(usize, AnyTensor)>) -> Result<Vec<(usize, AnyTensor)>, ZeroError> {
        self.turn = None;
        let (mut pieces, wrong) = self.sorted(pieces)?;
        let present = self.presence(&pieces, wrong)?;
        let shapes = pieces.iter().map(|(&at, piece)| (at, piece.shape())).collect();
        let me = self.group.rank();
        let mut whole: BTreeMap<usize, AnyTensor> = BTreeMap::new();
        let (mut flying, mut landed) = (VecDeque::<InFlight>::new(), Vec::new());
        for round in &self.routes.rounds {
            if flying.len() >= IN_FLIGHT
                && let Some(oldest) = flying.pop_front()
            {
                self.wait(oldest, &present, Direction::Inward, &mut landed)?;
            }
            let pending = self.post(round, &present, Direction::Inward, |at| {
                (values(&pieces[&at]), self.matrices[at].region.clone())
            });
            let mut owned = Vec::new();
            for at in round.clone().filter(|&at| present[at]) {
                let piece = pieces.remove(&at);
                if self.routes.routes[at].owner != me {
                    continue;
                }
                match piece {
                    Some(piece) if self.matrices[at].holds_all() => {
                        whole.insert(at, shaped(piece, &self.matrices[at].shape, &self.device));
                    }
                    piece => {
                        let target = self.matrices[at].whole();
                        let mut all = vec![0.0; target.elements()];
                        if let Some(piece) = piece {
                            let held = self.matrices[at].region.clone();
                            self.own_cells(at, values(&piece).as_ref(), &held, &mut all, &target);
                        }
                        owned.push((at, all));
                    }
                }
            }
            flying.push_back((round.clone(), pending, owned));
        }
        while let Some(oldest) = flying.pop_front() {
            self.wait(oldest, &present, Direction::Inward, &mut landed)?;
        }
        for (at, all) in landed {
            whole.insert(at, AnyTensor::from_elements(all, &self.matrices[at].shape, &self.device));
        }
        self.turn = Some(Turn { present, shapes });
        Ok(whole.into_iter().map(|(at, value)| (self.matrices[at].index, value)).collect())
    }

    fn scatter(&mut self, whole: Vec<(usize, AnyTensor)>) -> Result<Vec<(usize, AnyTensor)>, ZeroError> {
        let Some(Turn { present, shapes }) = self.turn.take() else {
            let matrix = self.matrices.first().map(|m| m.name.clone()).unwrap_or_default();
            return Err(ExchangeError::Turn { matrix, what: "scattered before it was gathered" }.into());
        };
        let mut whole = self.returned(whole, &present)?;
        let me = self.group.rank();
        let mut pieces: BTreeMap<usize, AnyTensor> = BTreeMap::new();
        let (mut flying, mut landed) = (VecDeque::<InFlight>::new(), Vec::new());
        for round in &self.routes.rounds {
            if flying.len() >= IN_FLIGHT
                && let Some(oldest) = flying.pop_front()
            {
                self.wait(oldest, &present, Direction::Outward, &mut landed)?;
            }
            let pending = self.post(round, &present, Direction::Outward, |at| {
                (values(&whole[&at]), self.matrices[at].whole())
            });
            let mut held = Vec::new();
            for at in round.clone().filter(|&at| present[at]) {
                let all = whole.remove(&at);
                let Some(shape) = shapes.get(&at) else { continue };
                let target = self.matrices[at].region.clone();
                match all {
                    Some(all) if self.matrices[at].holds_all() => {
                        pieces.insert(at, shaped(all, shape, &self.device));
                    }
                    Some(all) => {
                        let mut piece = vec![0.0; target.elements()];
                        let from = self.matrices[at].whole();
                        self.own_cells(at, values(&all).as_ref(), &from, &mut piece, &target);
                        pieces.insert(at, AnyTensor::from_elements(piece, shape, &self.device));
                    }
                    None if self.routes.routes[at].owner != me => {
                        held.push((at, vec![0.0; target.elements()]))
                    }
                    None => unreachable!("invariant: owners returned what they were given"),
                }
            }
            flying.push_back((round.clone(), pending, held));
        }
        while let Some(oldest) = flying.pop_front() {
            self.wait(oldest, &present, Direction::Outward, &mut landed)?;
        }
        for (at, piece) in landed {
            pieces.insert(at, AnyTensor::from_elements(piece, &shapes[&at], &self.device));
        }
        Ok(pieces.into_iter().map(|(at, value)| (self.matrices[at].index, value)).collect())
    }

    fn held(&self, index: usize) -> (Vec<Range<usize>>, Vec<Range<usize>>) {
        match self.routes.at(index) {
            Some(at) => {
                let region = &self.matrices[at].region;
                (region.ranges(0).to_vec(), region.ranges(1).to_vec())
            }
            None => (Vec::new(), Vec::new()),
        }
    }
}

impl std::fmt::Debug for MatrixAllToAll {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Exchange({} matrices, rank {}", self.matrices.len(), self.group.rank())?;
        write!(f, " of {})", self.group.size())
    }
}

/// Where each rank's part begins.
fn starts(counts: &[usize]) -> Vec<usize> {
    let mut next = 0;
    let mut start = |n: &usize| {
        next += n;
        next - n
    };
    counts.iter().map(&mut start).collect()
}

fn values(tensor: &AnyTensor) -> burnish_ops::Elements<f32> {
    tensor.elements::<f32>().expect("invariant: checked to be f32")
}

/// The same elements in another shape.
fn shaped(tensor: AnyTensor, shape: &[usize], device: &Device) -> AnyTensor {
    if tensor.shape() == shape {
        return tensor;
    }
    AnyTensor::from_elements(values(&tensor).as_ref().to_vec(), shape, device)
}
