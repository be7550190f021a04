//! Rows of like length beside one another, as Transformers' `LengthGroupedSampler` lays them.

/// Groups a random order of rows: cut into stretches of up to 50 batches (at least four stretches where there are rows
/// for it), each from the longest row to the shortest, and the longest row of all first, so that memory runs out in
/// the first step or never.
pub(super) fn grouped(order: &[usize], lengths: &[usize], batch: usize) -> Vec<usize> {
    let batch = batch.max(1);
    let stretch = batch * (order.len() / (batch * 4)).clamp(1, 50);
    let length = |row: usize| lengths.get(row).copied().unwrap_or(0);
    let mut stretches: Vec<Vec<usize>> = order.chunks(stretch).map(<[usize]>::to_vec).collect();
    for rows in &mut stretches {
        rows.sort_by_key(|&row| std::cmp::Reverse(length(row)));
    }
    // The first of several that are as long.
    let longest = (0..stretches.len()).rev().max_by_key(|&at| length(stretches[at][0]));
    if let Some(at) = longest.filter(|&at| at > 0) {
        let (first, rest) = stretches.split_at_mut(at);
        std::mem::swap(&mut first[0][0], &mut rest[0][0]);
    }
    stretches.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `get_length_grouped_indices` of Transformers 5.23, with its random permutation replaced by these orders.
    #[test]
    fn transformers_order_for_the_same_permutation() {
        let lengths: Vec<usize> = (0..23).map(|i| (i * 7 + 3) % 11).collect();
        let order: Vec<usize> = (0..23).map(|i| (i * 5 + 2) % 23).collect();
        assert_eq!(
            grouped(&order, &lengths, 2),
            [12, 7, 2, 17, 4, 22, 14, 9, 1, 19, 11, 6, 21, 16, 8, 3, 18, 13, 5, 0, 15, 10, 20]
        );
        assert_eq!(
            grouped(&order, &lengths, 30),
            [12, 1, 4, 15, 7, 18, 21, 10, 2, 13, 16, 5, 19, 8, 22, 11, 0, 14, 3, 17, 6, 9, 20]
        );
        assert_eq!(grouped(&[], &[], 4), [0_usize; 0]);
    }
}
