//! `AllToAllPlan`: the sender and receiver of each piece of each matrix, a pure function of what all ranks hold.

use std::ops::Range;

use burnish_comm::{Op, Traffic};
use burnish_core::{Dtype, LayoutError, Region};

use super::{ExchangeError, Matrix};
use crate::owners::owners_among;

/// A part of a matrix that is all within, or all outside, what any one rank holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) region: Region,
    /// Who holds it, rising.
    pub(super) holders: Vec<usize>,
    /// The holder whose copy goes to the owner: the owner itself if it is one, else the first.
    pub(super) sender: usize,
}

impl Cell {
    pub(super) fn elements(&self) -> usize {
        self.region.elements()
    }
}

/// One matrix's way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) index: usize,
    pub(super) owner: usize,
    pub(super) cells: Vec<Cell>,
    /// Elements that go to the owner.
    pub(super) inward: usize,
    /// Elements that come back.
    pub(super) outward: usize,
}

impl Route {
    /// Whether anything of it is on another rank than its owner.
    pub(super) fn moves(&self) -> bool {
        self.inward + self.outward > 0
    }
}

/// Who orthogonalises which matrix, and what travels to and from there: fixed before anything does, and the same on every
/// rank.
///
/// Rows may be dealt unevenly, columns too (tensor parallelism), parts may overlap or be replicated (shared heads), and
/// ranks may hold nothing. A rank that holds all of a matrix is its owner, else one that holds some: the one with the
/// least to do ([`owners`](crate::owners)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllToAllPlan {
    world: usize,
    pub(super) routes: Vec<Route>,
    pub(super) rounds: Vec<Range<usize>>,
}

impl AllToAllPlan {
    /// The routes between ranks that hold `holdings[rank]`; every rank lists all matrices, by rising index. Matrices travel in
    /// rounds, in which no rank sends or receives more than `most` elements, or there is one matrix only.
    ///
    /// # Errors
    /// If ranks list other matrices or shapes, a range does not fit, or a part of a matrix is nobody's.
    ///
    /// # Panics
    /// If there are no ranks.
    pub fn new(holdings: &[Vec<Matrix>], most: usize) -> Result<Self, ExchangeError> {
        check(holdings)?;
        let world = holdings.len();
        let first = &holdings[0];
        let may_own = |at: usize| {
            let which = |test: fn(&Matrix) -> bool| -> Vec<usize> {
                (0..world).filter(|&r| test(&holdings[r][at])).collect()
            };
            let whole = which(Matrix::holds_all);
            let some = if whole.is_empty() { which(Matrix::holds_some) } else { whole };
            // Nobody holds anything of a matrix without elements.
            if some.is_empty() { vec![0] } else { some }
        };
        let candidates: Vec<Vec<usize>> = (0..first.len()).map(may_own).collect();
        let work: Vec<_> = first.iter().map(Matrix::work).collect();
        let owners = owners_among(&work, world, |at| &candidates[at]);
        let routes: Vec<Route> = owners
            .into_iter()
            .enumerate()
            .map(|(at, owner)| route(holdings, at, owner))
            .collect::<Result<_, _>>()?;
        let rounds = rounds(&routes, world, most);
        Ok(Self { world, routes, rounds })
    }

    /// The rank that orthogonalises the parameter at `index`; `None` if it is no matrix here.
    #[must_use]
    pub fn owner(&self, index: usize) -> Option<usize> {
        self.at(index).map(|at| self.routes[at].owner)
    }

    /// The place of a parameter among the matrices.
    pub(super) fn at(&self, index: usize) -> Option<usize> {
        self.routes.binary_search_by_key(&index, |route| route.index).ok()
    }

    /// Whether anything travels at all.
    #[must_use]
    pub fn moves(&self) -> bool {
        self.routes.iter().any(Route::moves)
    }

    /// What `rank` communicates in a step in which every matrix has a gradient. Elements of an all-to-all are those that a
    /// rank sends.
    #[must_use]
    pub fn traffic(&self, rank: usize) -> Traffic {
        let mut traffic = Traffic::default();
        if !self.moves() {
            return traffic;
        }
        traffic.add(Op::AllReduce, Dtype::U8, 1, 2 * self.routes.len() as u64);
        for round in &self.rounds {
            let routes = &self.routes[round.clone()];
            for direction in [Direction::Inward, Direction::Outward] {
                if routes.iter().any(|r| direction.elements(r) > 0) {
                    let sent =
                        routes.iter().map(|r| direction.counts(r, rank, self.world)[0].iter().sum::<usize>());
                    traffic.add(Op::AllToAll, Dtype::F32, 1, sent.sum::<usize>() as u64);
                }
            }
        }
        traffic
    }

    /// The most elements that `rank` sends and receives in as many rounds in one direction as are on their way at once.
    #[must_use]
    pub fn staged(&self, rank: usize, rounds: usize) -> usize {
        let most = |direction: Direction| -> usize {
            let of = |round: &Range<usize>| -> usize {
                let routes = self.routes[round.clone()].iter();
                routes.flat_map(|r| direction.counts(r, rank, self.world)).flatten().sum()
            };
            let mut sizes: Vec<usize> = self.rounds.iter().map(of).collect();
            sizes.sort_unstable_by(|a, b| b.cmp(a));
            sizes.iter().take(rounds).sum()
        };
        most(Direction::Inward).max(most(Direction::Outward))
    }

    /// Elements of the whole matrices that `rank` puts together from pieces.
    #[must_use]
    pub fn assembled(&self, rank: usize) -> usize {
        let owned = self.routes.iter().filter(|r| r.owner == rank && r.inward > 0);
        owned.flat_map(|r| &r.cells).map(Cell::elements).sum()
    }
}

/// To owners, or back from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Inward,
    Outward,
}

impl Direction {
    /// Elements of a matrix that travel.
    pub(super) fn elements(self, route: &Route) -> usize {
        match self {
            Self::Inward => route.inward,
            Self::Outward => route.outward,
        }
    }

    /// Elements of a matrix that `rank` sends to, and receives from, each rank.
    pub(super) fn counts(self, route: &Route, rank: usize, world: usize) -> [Vec<usize>; 2] {
        let (mut send, mut receive) = (vec![0; world], vec![0; world]);
        self.each(route, |cell, from, to| {
            if from == rank {
                send[to] += cell.elements();
            }
            if to == rank {
                receive[from] += cell.elements();
            }
        });
        [send, receive]
    }

    /// Every way of every cell, in the order in which it is packed: (cell, from, to).
    pub(super) fn each<'a>(self, route: &'a Route, mut visit: impl FnMut(&'a Cell, usize, usize)) {
        for cell in &route.cells {
            match self {
                Self::Inward if cell.sender != route.owner => visit(cell, cell.sender, route.owner),
                Self::Inward => {}
                Self::Outward => {
                    for &holder in cell.holders.iter().filter(|&&h| h != route.owner) {
                        visit(cell, route.owner, holder);
                    }
                }
            }
        }
    }
}

/// Whether all ranks speak of the same matrices, and hold parts of them.
fn check(holdings: &[Vec<Matrix>]) -> Result<(), ExchangeError> {
    let first = holdings.first().expect("invariant: at least one rank");
    let longest = holdings.iter().map(Vec::len).max().unwrap_or(0);
    for position in 0..longest {
        let of = |rank: &Vec<Matrix>| rank.get(position).map(|m| (m.index, m.name.clone()));
        let expected = of(first);
        let ranks: Vec<usize> = (0..holdings.len()).filter(|&r| of(&holdings[r]) != expected).collect();
        if !ranks.is_empty() {
            let expected = expected.map_or("nothing".to_owned(), |(_, name)| format!("`{name}`"));
            return Err(ExchangeError::Unlike { ranks, position, expected });
        }
    }
    for pair in first.windows(2) {
        if pair[0].index >= pair[1].index {
            return Err(ExchangeError::Order {
                matrix: pair[1].name.clone(),
                index: pair[1].index,
                after: pair[0].index,
            });
        }
    }
    for (at, matrix) in first.iter().enumerate() {
        let other = holdings.iter().find(|rank| rank[at].shape != matrix.shape);
        if let Some(other) = other {
            let got = other[at].shape.clone();
            return Err(ExchangeError::Shape {
                matrix: matrix.name.clone(),
                ranks: (0..holdings.len()).filter(|&r| holdings[r][at].shape == got).collect(),
                got,
                expected: matrix.shape.clone(),
            });
        }
        for (rank, held) in holdings.iter().map(|rank| &rank[at]).enumerate() {
            if let Err(LayoutError::Ranges { dim, got, within }) = held.region.check() {
                let (matrix, what) = (matrix.name.clone(), ["rows", "columns"][dim]);
                return Err(ExchangeError::Ranges { matrix, rank, what, got, within });
            }
        }
    }
    Ok(())
}

/// The cells of one matrix.
fn route(holdings: &[Vec<Matrix>], at: usize, owner: usize) -> Result<Route, ExchangeError> {
    let matrix = &holdings[0][at];
    let [rows, columns] = matrix.size();
    let holders: Vec<usize> = (0..holdings.len()).filter(|&r| holdings[r][at].holds_some()).collect();
    let cuts = |end: usize, dim: usize| -> Vec<usize> {
        let held = holders.iter().flat_map(|&r| holdings[r][at].region.ranges(dim));
        let mut cuts: Vec<usize> = held.flat_map(|range| [range.start, range.end]).chain([0, end]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        cuts
    };
    let (row_cuts, column_cuts) = (cuts(rows, 0), cuts(columns, 1));
    // Per interval, who has it: a cell's holders have both its rows and its columns.
    let having = |cuts: &[usize], dim: usize| -> Vec<Vec<usize>> {
        let mut having = vec![Vec::new(); cuts.len().saturating_sub(1)];
        for &rank in &holders {
            for range in holdings[rank][at].region.ranges(dim) {
                let interval = |edge: usize| cuts.partition_point(|&cut| cut < edge);
                having[interval(range.start)..interval(range.end)].iter_mut().for_each(|h| h.push(rank));
            }
        }
        having
    };
    let row_holders = having(&row_cuts, 0);
    let column_holders = having(&column_cuts, 1);
    let mut route = Route { index: matrix.index, owner, cells: Vec::new(), inward: 0, outward: 0 };
    for (r, in_rows) in row_cuts.windows(2).zip(&row_holders) {
        for (c, in_columns) in column_cuts.windows(2).zip(&column_holders) {
            let (rows, columns) = (r[0]..r[1], c[0]..c[1]);
            let of: Vec<usize> =
                in_rows.iter().copied().filter(|r| in_columns.binary_search(r).is_ok()).collect();
            let Some(&lowest) = of.first() else {
                let matrix = matrix.name.clone();
                return Err(ExchangeError::Uncovered { matrix, rows, columns, holders });
            };
            let sender = if of.contains(&owner) { owner } else { lowest };
            let region = Region::announced(&matrix.size(), vec![vec![rows], vec![columns]]);
            let cell = Cell { region, holders: of, sender };
            if sender != owner {
                route.inward += cell.elements();
            }
            route.outward += cell.elements() * cell.holders.iter().filter(|&&h| h != owner).count();
            route.cells.push(cell);
        }
    }
    Ok(route)
}

/// Consecutive matrices whose traffic fits.
fn rounds(routes: &[Route], world: usize, most: usize) -> Vec<Range<usize>> {
    let mut rounds: Vec<Range<usize>> = Vec::new();
    let zero = || vec![[0_usize; 4]; world];
    let (mut load, mut start) = (zero(), 0);
    for (at, route) in routes.iter().enumerate() {
        let mut own = zero();
        for (d, direction) in [Direction::Inward, Direction::Outward].into_iter().enumerate() {
            direction.each(route, |cell, from, to| {
                own[from][2 * d] += cell.elements();
                own[to][2 * d + 1] += cell.elements();
            });
        }
        let full = load.iter().zip(&own).any(|(a, b)| a.iter().zip(b).any(|(a, b)| a + b > most));
        if full && at > start {
            rounds.push(start..at);
            (load, start) = (zero(), at);
        }
        for (sum, own) in load.iter_mut().zip(&own) {
            sum.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
    }
    if start < routes.len() {
        rounds.push(start..routes.len());
    }
    rounds
}

#[cfg(test)]
mod tests;
