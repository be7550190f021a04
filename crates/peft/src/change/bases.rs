//! Random bases that are weighed: what RandLoRA adds.

use super::matrix::Matrix;

/// The change `[out, input]` before its scale: see [`Change::Bases`](super::Change::Bases).
pub(super) fn bases(parts: &[Matrix], [out, input]: [usize; 2]) -> Matrix {
    let [lambda, gamma, small, large] = parts else {
        return Matrix { rows: 0, columns: 0, values: Vec::new() };
    };
    let (rank, count, least) = (lambda.rows, lambda.columns, gamma.columns);
    let most = out.max(input);
    let weighed = (0..rank * count * least).map(|i| {
        let (row, base, column) = (i / (count * least), i / least % count, i % least);
        let weight = lambda.values[row * count + base] * gamma.values[base * least + column];
        weight * small.values[row * small.columns + column]
    });
    let weighed = Matrix { rows: rank * count, columns: least, values: weighed.collect() };
    // PEFT multiplies what it has by rank and base with what it has by base and rank.
    let first = large.first_rows(most).first_columns(count * rank);
    let wide = first.times(&weighed);
    if least == input { wide } else { wide.transposed() }
}
