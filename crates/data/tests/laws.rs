//! What holds for any rows.

use burnish_data::{Collator, Example, IGNORED, Strategy as Packing, pack};
use proptest::prelude::*;

use crate::collator::same_as_padded;

fn rows() -> impl Strategy<Value = Vec<Example>> {
    let token = (0..500_u32, any::<bool>());
    let row = prop::collection::vec(token, 0..40).prop_map(|tokens| {
        let (ids, learned): (Vec<u32>, Vec<bool>) = tokens.into_iter().unzip();
        let label = |(&id, learned): (&u32, bool)| if learned { i32::try_from(id).unwrap() } else { IGNORED };
        let labels = ids.iter().zip(learned).map(label).collect();
        Example::new(ids, labels)
    });
    prop::collection::vec(row, 0..60)
}

fn tokens(examples: &[Example]) -> Vec<(u32, i32)> {
    examples.iter().flat_map(|e| e.input_ids.iter().copied().zip(e.labels.iter().copied())).collect()
}

proptest! {
    #[test]
    fn packing_keeps_every_token_once(rows in rows(), length in 1_usize..50) {
        for strategy in [Packing::BfdSplit, Packing::Wrapped, Packing::Bfd] {
            let packed = pack(&rows, length, strategy);
            prop_assert!(packed.iter().all(|e| !e.is_empty() && e.len() <= length));
            let cut: Vec<Example> = rows.iter().map(|e| {
                let kept = if strategy == Packing::Bfd { e.len().min(length) } else { e.len() };
                Example::new(e.input_ids[..kept].to_vec(), e.labels[..kept].to_vec())
            }).collect();
            if strategy == Packing::Wrapped {
                prop_assert_eq!(tokens(&packed), tokens(&cut));
                continue;
            }
            // Sequences move, but stay whole: compare them as sorted lists.
            let mut before: Vec<Vec<(u32, i32)>> = cut.iter().flat_map(|e| {
                tokens(std::slice::from_ref(e)).chunks(length).map(<[_]>::to_vec).collect::<Vec<_>>()
            }).collect();
            let mut after = Vec::new();
            for row in &packed {
                prop_assert_eq!(row.seq_lengths.iter().sum::<usize>(), row.len());
                let all = tokens(std::slice::from_ref(row));
                let mut at = 0;
                for &n in &row.seq_lengths {
                    after.push(all[at..at + n].to_vec());
                    at += n;
                }
            }
            before.sort();
            after.sort();
            prop_assert_eq!(before, after);
        }
    }

    #[test]
    fn best_fit_leaves_no_two_rows_that_fit_together(rows in rows(), length in 1_usize..50) {
        let packed = pack(&rows, length, Packing::Bfd);
        // Any-fit: the first sequence of a later row did not fit into an earlier row when it came.
        for (i, later) in packed.iter().enumerate() {
            for earlier in &packed[..i] {
                prop_assert!(earlier.len() + later.seq_lengths[0] > length);
            }
        }
    }

    #[test]
    fn the_flat_batch_is_trls_without_padding(
        rows in rows(), length in 4_usize..50, multiple in prop::option::of(1_usize..9), packed in any::<bool>(), free in any::<bool>(),
    ) {
        let rows = if packed { pack(&rows, length, Packing::Bfd) } else { rows };
        let rows: Vec<&Example> = rows.iter().filter(|e| !e.is_empty()).collect();
        prop_assume!(!rows.is_empty());
        let collator = Collator { padding_free: free, pad_to_multiple_of: multiple, ..Collator::default() };
        let batch = collator.batch(&rows, 3);
        same_as_padded(&batch, &collator.padded(&rows));
        prop_assert_eq!(batch.num_tokens, collator.padded(&rows).num_tokens());
        // Rows come back from the flat batch.
        prop_assert_eq!(batch.rows.len(), rows.len());
        for (i, (range, row)) in batch.rows.iter().zip(&rows).enumerate() {
            prop_assert_eq!(&batch.input_ids[range.clone()], &row.input_ids[..]);
            let ids: Vec<u64> = (0..row.len() as u64).map(|t| ((3 + i as u64) << 32) | t).collect();
            prop_assert_eq!(&batch.row_ids[range.clone()], &ids[..]);
        }
        // Documents tile the batch.
        let ends: Vec<usize> = batch.documents.iter().map(|d| d.end).collect();
        let starts: Vec<usize> = batch.documents.iter().map(|d| d.start).collect();
        prop_assert_eq!(starts[0], 0);
        prop_assert_eq!(&starts[1..], &ends[..ends.len() - 1]);
        prop_assert_eq!(*ends.last().unwrap(), batch.len());
    }

    #[test]
    fn the_cut_into_micro_batches_changes_no_token(rows in rows(), size in 1_usize..7) {
        let rows: Vec<&Example> = rows.iter().filter(|e| !e.is_empty()).collect();
        let collator = Collator::default();
        let whole = collator.batch(&rows, 0);
        let mut ids = Vec::new();
        let (mut labels, mut counters, mut targets) = (Vec::new(), Vec::new(), 0);
        for (i, part) in rows.chunks(size).enumerate() {
            let batch = collator.batch(part, i * size);
            targets += batch.num_targets();
            ids.extend(batch.input_ids);
            labels.extend(batch.labels);
            counters.extend(batch.row_ids);
        }
        prop_assert_eq!(targets, whole.num_targets());
        prop_assert_eq!(ids, whole.input_ids);
        prop_assert_eq!(labels, whole.labels);
        prop_assert_eq!(counters, whole.row_ids);
    }
}
