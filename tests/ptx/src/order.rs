//! `Order`: which warps have seen what others did, where they meet at barriers in memory.

use std::collections::HashMap;

/// What happened before what, by numbers that grow with each arrival.
#[derive(Debug)]
pub(crate) struct Order {
    warps: usize,
    now: u32,
    /// For each warp, up to which number it has seen what each warp did.
    seen: Vec<u32>,
    /// What those have seen that arrived at a barrier, by its address.
    barriers: HashMap<u64, Vec<u32>>,
}

fn join(into: &mut [u32], from: &[u32]) {
    for (into, &from) in into.iter_mut().zip(from) {
        *into = (*into).max(from);
    }
}

impl Order {
    pub(crate) fn new(warps: usize) -> Self {
        Self { warps, now: 1, seen: vec![0; warps * warps], barriers: HashMap::new() }
    }

    /// The number of what is done now, above 0.
    pub(crate) fn now(&self) -> u32 {
        self.now
    }

    /// Whether `warp` has seen what `other` did at a number.
    pub(crate) fn has_seen(&self, warp: usize, other: usize, at: u32) -> bool {
        warp == other || self.seen[warp * self.warps + other] > at
    }

    /// A warp arrives at a barrier: who waits there sees what it did and saw.
    pub(crate) fn arrive(&mut self, warp: usize, barrier: u64) {
        self.now += 1;
        let row = warp * self.warps..(warp + 1) * self.warps;
        self.seen[row.start + warp] = self.now;
        let kept = self.barriers.entry(barrier).or_insert_with(|| vec![0; self.warps]);
        join(kept, &self.seen[row]);
    }

    /// A warp has found a phase of a barrier to be over.
    pub(crate) fn pass(&mut self, warp: usize, barrier: u64) {
        if let Some(kept) = self.barriers.get(&barrier) {
            join(&mut self.seen[warp * self.warps..(warp + 1) * self.warps], kept);
        }
    }

    /// All warps meet.
    pub(crate) fn meet(&mut self) {
        self.now += 1;
        self.seen.fill(self.now);
    }
}

#[cfg(test)]
mod tests {
    use super::Order;

    #[test]
    fn only_who_waits_has_seen_what_was_done_before_an_arrival() {
        let mut order = Order::new(3);
        let written = order.now();
        order.arrive(0, 64);
        let later = order.now();
        order.pass(1, 64);
        order.pass(2, 72);
        assert!(order.has_seen(1, 0, written) && !order.has_seen(1, 0, later));
        assert!(!order.has_seen(2, 0, written) && order.has_seen(0, 0, later));
        // What was seen is passed on.
        order.arrive(1, 72);
        order.pass(2, 72);
        assert!(order.has_seen(2, 0, written) && !order.has_seen(2, 0, later));
        order.meet();
        assert!(order.has_seen(2, 0, later));
    }
}
