use burnish_core::expert_tiles;
use burnish_gpu_kernels::{
    Buffer, Client, ExpertRows, FloatType, GROUP_ROWS, NO_ROW, combine_rows, count_experts,
};

use crate::on_device::{client, close, download, dtypes, numbers, rounding, upload, upload_integers};

/// Tokens, experts of each and experts: of one part of places and of more, of more experts than a cube has units.
const SHAPES: &[[usize; 3]] =
    &[[1, 1, 1], [1, 8, 128], [70, 2, 6], [64, 8, 8], [65, 8, 8], [300, 4, 60], [150, 8, 300]];

fn words(client: &Client, buffer: &Buffer) -> Vec<u32> {
    download(client, buffer).into_iter().map(f32::to_bits).collect()
}

/// Uneven, each token's apart; every seventh is of another rank.
fn chosen([tokens, each, experts]: [usize; 3], elsewhere: bool) -> Vec<u32> {
    let one = |place: usize| {
        let (token, j) = (place / each, place % each);
        let expert = (token * token / 3 + j) % experts;
        if elsewhere && place % 7 == 3 { u32::MAX } else { expert as u32 }
    };
    (0..tokens * each).map(one).collect()
}

#[test]
fn rows_are_sorted_by_expert_and_filled_up() {
    let client = client();
    for (&shape, elsewhere) in SHAPES.iter().flat_map(|shape| [(shape, false), (shape, true)]) {
        let [tokens, each, experts] = shape;
        let ids = chosen(shape, elsewhere);
        let at = upload_integers(&client, &ids);
        let tiles = expert_tiles(experts, ids.len());
        let got = ExpertRows::new(&client, &at, experts, each, tiles);
        let (mut places, mut of_tiles, mut starts) = (Vec::new(), Vec::new(), Vec::new());
        for expert in 0..experts as u32 {
            starts.push(places.len() as u32);
            places.extend((0..ids.len()).filter(|&place| ids[place] == expert).map(|place| place as u32));
            places.resize(places.len().next_multiple_of(GROUP_ROWS), NO_ROW);
            of_tiles.resize(places.len() / GROUP_ROWS, expert);
        }
        starts.push(places.len() as u32);
        assert!(of_tiles.len() <= tiles, "{shape:?}");
        places.resize(tiles * GROUP_ROWS, NO_ROW);
        of_tiles.resize(tiles, experts as u32);
        let mut of_places = vec![NO_ROW; ids.len()];
        for (row, &place) in places.iter().enumerate().filter(|(_, place)| **place != NO_ROW) {
            of_places[place as usize] = row as u32;
        }
        let token = |&place: &u32| if place == NO_ROW { NO_ROW } else { place / each as u32 };
        let of_rows: Vec<u32> = places.iter().map(token).collect();
        let counts = (0..experts as u32).map(|e| ids.iter().filter(|&&id| id == e).count() as f32);
        let same = [
            words(&client, &got.places) == places,
            words(&client, &got.tokens) == of_rows,
            words(&client, &got.of_places) == of_places,
            words(&client, &got.of_tiles) == of_tiles,
            words(&client, &got.starts) == starts,
            download(&client, &count_experts(&client, &at, experts)) == counts.collect::<Vec<_>>(),
        ];
        assert_eq!(same, [true; 6], "{shape:?}, some elsewhere {elsewhere}");
        // Two tiles more are nobody's.
        let more = ExpertRows::new(&client, &at, experts, each, tiles + 2);
        assert!(words(&client, &more.of_tiles)[tiles..] == [experts as u32; 2], "{tokens}");
    }
}

#[test]
fn rows_of_a_token_are_added() {
    let client = client();
    for &shape in &[[1, 1, 1], [5, 3, 4], [70, 8, 6]] {
        let [tokens, each, experts] = shape;
        let ids = chosen(shape, true);
        let rows = ExpertRows::new(
            &client,
            &upload_integers(&client, &ids),
            experts,
            each,
            expert_tiles(experts, ids.len()),
        );
        let of_places = words(&client, &rows.of_places);
        for (&dtype, columns) in dtypes().iter().flat_map(|dtype| [(dtype, 7), (dtype, 24)]) {
            let x = numbers(dtype, rows.places.len * columns, 1);
            let weights = numbers(FloatType::F32, ids.len(), 2);
            let x_at = upload(&client, dtype, &x);
            let weights_at = upload(&client, FloatType::F32, &weights);
            for weighted in [false, true] {
                let mut expected = vec![0.0f64; tokens * columns];
                for (place, &row) in of_places.iter().enumerate().filter(|(_, row)| **row != NO_ROW) {
                    let weight = if weighted { f64::from(weights[place]) } else { 1.0 };
                    let own = &x[row as usize * columns..][..columns];
                    let into = &mut expected[place / each * columns..][..columns];
                    into.iter_mut().zip(own).for_each(|(to, &x)| *to += weight * f64::from(x));
                }
                let weights = weighted.then_some(&weights_at);
                let got =
                    combine_rows(&client, &x_at, Some(&rows.of_places), weights, (each, columns), dtype);
                let what = format!("{shape:?} of {columns} in {dtype:?}, weighted {weighted}");
                close(&what, &download(&client, &got), &expected, 1e-5 + rounding(dtype));
            }
        }
    }
}
