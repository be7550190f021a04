//! Random bases that are weighed, on the tape: what RandLoRA adds.

use burn::tensor::Tensor;

/// `A` `[n r, in]` and `B` `[out, n r]` of weights `lambda` `[r, n]` and `gamma` `[n, shorter]` and the bases `[r, 1, widest]`
/// and `[highest, most, r]` of all modules, for a layer of sides `[out, in]`.
pub(super) fn bases(
    [lambda, gamma]: [Tensor<2>; 2],
    [small, large]: [Tensor<3>; 2],
    [out, input]: [usize; 2],
) -> [Tensor<2>; 2] {
    let ([rank, count], [_, least]) = (lambda.dims(), gamma.dims());
    let most = out.max(input);
    let weights = lambda.reshape([rank, count, 1]) * gamma.reshape([1, count, least]);
    let short = (small.narrow(2, 0, least) * weights).reshape([rank * count, least]);
    // PEFT multiplies what it has by rank and base with what it has by base and rank.
    let long = large.narrow(0, 0, most).narrow(1, 0, count).reshape([most, count * rank]);
    if least == input { [short, long] } else { [long.transpose(), short.transpose()] }
}
