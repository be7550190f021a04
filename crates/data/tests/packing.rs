//! TRL's `pack_dataset`, case by case.

use burnish_data::{Example, Strategy, pack};

use crate::cases::{golden, table};

#[test]
fn packs_as_trl() {
    for (i, case) in
        golden("packing.json", |case| recordings::parses::<Strategy>(case, "strategy")).iter().enumerate()
    {
        let strategy: Strategy = case["strategy"].as_str().unwrap().parse().unwrap();
        let rows: Vec<Example> = table(&case["input_ids"]).into_iter().map(Example::all).collect();
        let length = usize::try_from(case["seq_length"].as_u64().unwrap()).unwrap();
        let packed = pack(&rows, length, strategy);
        let out = &case["out"];
        let ids: Vec<Vec<u32>> = packed.iter().map(|e| e.input_ids.clone()).collect();
        let labels: Vec<Vec<i32>> = packed.iter().map(|e| e.labels.clone()).collect();
        assert_eq!(ids, table::<u32>(&out["input_ids"]), "case {i}, {strategy}");
        assert_eq!(labels, table::<i32>(&out["labels"]), "case {i}, {strategy}");
        if strategy.keeps_documents() {
            let lengths: Vec<Vec<usize>> = packed.iter().map(|e| e.seq_lengths.clone()).collect();
            assert_eq!(lengths, table::<usize>(&out["seq_lengths"]), "case {i}, {strategy}");
        } else {
            assert!(out.get("seq_lengths").is_none() && packed.iter().all(|e| e.seq_lengths.is_empty()));
        }
    }
}

#[test]
fn windows_are_packed_on_their_own() {
    // 1001 rows of 2 tokens, rows of 4: 500 full rows, then one row of the second window alone.
    let rows: Vec<Example> = (0..1001).map(|i| Example::all(vec![i, i])).collect();
    for strategy in [Strategy::Bfd, Strategy::BfdSplit, Strategy::Wrapped] {
        let packed = pack(&rows, 4, strategy);
        assert_eq!(packed.len(), 501);
        assert_eq!(packed[500].input_ids, [1000, 1000]);
    }
}
