//! Factors whose parts are mixed of the vectors of a bank, on the tape: what VB-LoRA adds.

use burn::tensor::Tensor;
use burn::tensor::activation::softmax;

/// `A` `[r, in]` and `B` `[out, r]` of logits `[r, in / v, vectors]` and `[out / v, r, vectors]`, and the bank `[vectors, v]`.
pub(super) fn banked([of_a, of_b]: [Tensor<3>; 2], bank: Tensor<2>, chosen: usize) -> [Tensor<2>; 2] {
    let [_, length] = bank.dims();
    let mixed = |logits: Tensor<3>| {
        let [one, two, _] = logits.dims();
        let (largest, at) = logits.topk_with_indices(chosen, 2);
        let vectors = bank.clone().select(0, at.reshape([one * two * chosen]));
        let weights = softmax(largest, 2).reshape([one, two, chosen, 1]);
        (vectors.reshape([one, two, chosen, length]) * weights).sum_dim(2).reshape([one, two, length])
    };
    let (a, b) = (mixed(of_a), mixed(of_b));
    let ([rank, parts, _], [across, _, _]) = (a.dims(), b.dims());
    // Of outputs the parts lie across: those of a rank are a column.
    [a.reshape([rank, parts * length]), b.swap_dims(1, 2).reshape([across * length, rank])]
}
