//! One micro-batch of eight rows is eight micro-batches of one.

use burnish_losses::{MetricSums, TokenLoss};
use burnish_ops::{AnyTensor, accumulate};

use crate::problem::{Problem, assert_same, labelled_loss};

/// Tokens of each row: uneven, one row without any label.
const ROWS: [usize; 8] = [31, 2, 57, 1, 12, 90, 7, 40];
const EMPTY: usize = 6;

#[test]
fn one_by_eight_is_eight_by_one() {
    for kind in [TokenLoss::Nll, TokenLoss::Dft] {
        let problem = Problem { tokens: ROWS.iter().sum(), bias: true, ..Problem::new() };
        let mut labels = problem.labels();
        let start: usize = ROWS[..EMPTY].iter().sum();
        labels[start..start + ROWS[EMPTY]].fill(None);
        labels[0] = Some(1);
        let denominator = labels.iter().flatten().count() as f64;

        let whole = problem.tensors();
        let out =
            labelled_loss(kind, &whole.hidden, &whole.head(), &labels, problem.options, denominator).unwrap();
        let mut gradients = out.loss.rank::<1>().unwrap().backward();
        let [hidden, weight, bias] = [&whole.hidden, &whole.weight, whole.bias.as_ref().unwrap()]
            .map(|t| t.take_gradient(&mut gradients).unwrap().to_f32());

        let (mut at, mut loss, mut tally) = (0, 0.0, MetricSums::new());
        let (mut d_hidden, mut d_weight, mut d_bias) = (Vec::new(), None, None);
        for tokens in ROWS {
            let mut part = problem.tensors();
            part.hidden =
                AnyTensor::new(whole.hidden.plain().rank::<2>().unwrap().narrow(0, at, tokens)).leaf();
            let labels = &labels[at..at + tokens];
            let out = labelled_loss(kind, &part.hidden, &part.head(), labels, problem.options, denominator)
                .unwrap();
            loss += out.loss.to_f32()[0];
            tally.merge(&out.facts.tally());
            let mut gradients = out.loss.rank::<1>().unwrap().backward();
            let mut take = |t: &AnyTensor| t.take_gradient(&mut gradients).unwrap();
            d_hidden.extend(take(&part.hidden).to_f32());
            d_weight = Some(accumulate(d_weight, take(&part.weight)));
            d_bias = Some(accumulate(d_bias, take(part.bias.as_ref().unwrap())));
            at += tokens;
        }

        assert_same(&[loss], &out.loss.to_f32(), 1e-6, "loss");
        assert_same(&d_hidden, &hidden, 1e-6, "hidden");
        assert_same(&d_weight.unwrap().to_f32(), &weight, 1e-6, "weight");
        assert_same(&d_bias.unwrap().to_f32(), &bias, 1e-6, "bias");
        for metric in ["loss", "entropy", "mean_token_accuracy"] {
            let ((a, n), (b, m)) = (tally.sums(metric).unwrap(), out.facts.tally().sums(metric).unwrap());
            assert_eq!(n, m, "{metric}");
            assert!((a - b).abs() <= 1e-6 * b.abs(), "{metric}: {a} is not {b}");
        }
    }
}
