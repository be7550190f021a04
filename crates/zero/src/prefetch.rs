//! Prefetch: the units to gather and to release, a pure function of the order in which they are read.

use std::collections::BTreeSet;

/// What there is to know of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnitInfo {
    /// Whether anything of it is sharded.
    pub(crate) sharded: bool,
    /// Whether it is a root.
    pub(crate) root: bool,
    /// Whether it may be started before it is read.
    pub(crate) guessed: bool,
}

/// What a read makes happen, in this order: forget, drop, gather or take, start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrefetchActions {
    /// A unit that was started and turned out not to be next.
    pub(crate) forget: Option<usize>,
    /// The unit that is dropped.
    pub(crate) drop: Option<usize>,
    /// Whether the unit must be gathered now.
    pub(crate) gather: bool,
    /// Whether it was started before.
    pub(crate) take: bool,
    /// The unit to start gathering.
    pub(crate) start: Option<usize>,
}

/// One unit and the kept roots are gathered; the next one may be on its way.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    panes: Vec<UnitInfo>,
    keep_root: bool,
    prefetch: bool,
    current: Option<usize>,
    roots: BTreeSet<usize>,
    ahead: Option<usize>,
    last: Option<usize>,
}

impl Window {
    pub(crate) fn new(panes: Vec<UnitInfo>, keep_root: bool, prefetch: bool) -> Self {
        Self { panes, keep_root, prefetch, current: None, roots: BTreeSet::new(), ahead: None, last: None }
    }

    /// Reading a unit. Nothing happens for one that is whole anyway.
    pub(crate) fn read(&mut self, unit: usize) -> PrefetchActions {
        let mut moves = PrefetchActions::default();
        if !self.panes[unit].sharded {
            return moves;
        }
        if self.roots.contains(&unit) {
            // A tied head reads the embedding: that is no step anywhere.
            return moves;
        }
        if !self.holds(unit) {
            let kept = self.keep_root && self.panes[unit].root;
            moves.take = self.ahead == Some(unit);
            moves.gather = !moves.take;
            moves.forget = self.ahead.take().filter(|&ahead| ahead != unit);
            moves.drop = self.current.take();
            if kept {
                self.roots.insert(unit);
            } else {
                self.current = Some(unit);
            }
        }
        moves.start = self.next(unit);
        if let Some(next) = moves.start {
            moves.forget = moves.forget.or(self.ahead.filter(|&ahead| ahead != next));
            if self.ahead == Some(next) {
                moves.start = None;
            }
            self.ahead = Some(next);
        }
        self.last = Some(unit);
        moves
    }

    /// Drops everything. Gives the unit that was on its way.
    pub(crate) fn clear(&mut self) -> Option<usize> {
        self.current = None;
        self.roots.clear();
        self.last = None;
        self.ahead.take()
    }

    pub(crate) fn holds(&self, unit: usize) -> bool {
        self.current == Some(unit) || self.roots.contains(&unit)
    }

    /// The unit that is likely to be read after `unit`: forward after its predecessor (or first of all), backward after its
    /// successor. A root is not read again in backward.
    fn next(&self, unit: usize) -> Option<usize> {
        if !self.prefetch || !self.panes[unit].guessed {
            return None;
        }
        let sharded = |u: &usize| self.panes[*u].sharded && self.panes[*u].guessed;
        let before = (0..unit).rev().find(sharded);
        let after = (unit + 1..self.panes.len()).find(sharded);
        let next = if self.last.is_some() && self.last == after {
            before.filter(|&u| !self.panes[u].root)
        } else if self.last == before {
            after
        } else {
            None
        };
        next.filter(|&u| !self.holds(u))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(kinds: &str, keep_root: bool) -> Window {
        let panes = kinds
            .chars()
            .map(|c| UnitInfo { sharded: c != '-', root: c == 'r', guessed: c != 'x' })
            .collect();
        Window::new(panes, keep_root, true)
    }

    /// The units in the order in which their gathers begin.
    fn gathers(window: &mut Window, order: &[usize]) -> Vec<usize> {
        let mut begun = Vec::new();
        for &unit in order {
            let moves = window.read(unit);
            begun.extend(moves.gather.then_some(unit));
            begun.extend(moves.start);
            assert!(!(moves.gather && moves.take));
        }
        begun
    }

    #[test]
    fn forward_then_backward_gathers_each_block_twice_and_each_root_once() {
        let mut window = window("rbbbr", true);
        let order = [0, 1, 2, 3, 4, 3, 2, 1];
        assert_eq!(gathers(&mut window, &order), [0, 1, 2, 3, 4, 3, 2, 1]);
        assert_eq!(window.clear(), None);
    }

    #[test]
    fn a_unit_is_started_one_ahead_in_either_direction() {
        let mut window = window("rbbbr", true);
        assert_eq!(
            window.read(0),
            PrefetchActions { gather: true, start: Some(1), ..PrefetchActions::default() }
        );
        assert_eq!(
            window.read(1),
            PrefetchActions { take: true, start: Some(2), ..PrefetchActions::default() }
        );
        assert_eq!(
            window.read(2),
            PrefetchActions { take: true, drop: Some(1), start: Some(3), ..PrefetchActions::default() }
        );
        assert_eq!(
            window.read(3),
            PrefetchActions { take: true, drop: Some(2), start: Some(4), ..PrefetchActions::default() }
        );
        assert_eq!(
            window.read(4),
            PrefetchActions { take: true, drop: Some(3), ..PrefetchActions::default() }
        );
        assert_eq!(
            window.read(3),
            PrefetchActions { gather: true, start: Some(2), ..PrefetchActions::default() }
        );
        assert_eq!(
            window.read(2),
            PrefetchActions { take: true, drop: Some(3), start: Some(1), ..PrefetchActions::default() }
        );
        assert_eq!(
            window.read(1),
            PrefetchActions { take: true, drop: Some(2), ..PrefetchActions::default() }
        );
        assert!(window.holds(0) && window.holds(4) && window.holds(1));
    }

    #[test]
    fn reading_again_costs_nothing() {
        let mut window = window("bbb", false);
        assert_eq!(gathers(&mut window, &[0, 0, 1, 1, 1]), [0, 1, 2]);
    }

    #[test]
    fn whole_units_are_passed_over() {
        let mut window = window("b-b", false);
        assert_eq!(gathers(&mut window, &[0, 1, 2, 1, 0]), [0, 2, 0]);
        assert_eq!(window.read(1), PrefetchActions::default());
    }

    #[test]
    fn what_no_unit_lists_is_gathered_when_it_is_read() {
        let mut window = window("bbx", false);
        assert_eq!(gathers(&mut window, &[0, 1, 0]), [0, 1, 0]);
        assert_eq!(
            window.read(2),
            PrefetchActions { gather: true, drop: Some(0), ..PrefetchActions::default() }
        );
    }

    #[test]
    fn a_wrong_guess_is_forgotten() {
        let mut window = window("bbbb", false);
        assert_eq!(window.read(0).start, Some(1));
        let moves = window.read(3);
        assert_eq!((moves.forget, moves.drop, moves.gather, moves.start), (Some(1), Some(0), true, None));
    }

    #[test]
    fn evaluation_goes_forward_again_and_again() {
        let mut window = window("rbbr", true);
        assert_eq!(gathers(&mut window, &[0, 1, 2, 3, 0, 1, 2, 3]), [0, 1, 2, 3, 1, 2]);
    }

    #[test]
    fn a_tied_head_reads_the_embedding_and_starts_nothing() {
        for keep_root in [true, false] {
            let again = if keep_root { None } else { Some(0) };
            let expected: Vec<usize> = [0, 1, 2, 3].into_iter().chain(again).chain([2, 1]).collect();
            assert_eq!(gathers(&mut window("rbbr", keep_root), &[0, 1, 2, 3, 0, 2, 1]), expected);
        }
    }

    #[test]
    fn a_released_root_is_gathered_where_it_is_read() {
        let mut window = window("rbbr", false);
        assert_eq!(gathers(&mut window, &[0, 1, 2, 3, 3, 2, 1, 0]), [0, 1, 2, 3, 2, 1, 0]);
    }
}
