//! Targets and shapes that do not fit.

use std::sync::Arc;

use burnish_losses::{TokenLoss, TokenLossOptions, token_loss};
use burnish_ops::OpsError;

use crate::long_hand::chunked_nll;
use crate::problem::Problem;

fn options(problem: &Problem) -> TokenLossOptions<'static> {
    TokenLossOptions { head: problem.options, denominator: Some(3.0), shard: None }
}

#[test]
fn a_target_outside_the_vocabulary() {
    let problem = Problem { tokens: 3, ..Problem::new() };
    let tensors = problem.tensors();
    let targets = Arc::new(vec![0, 101, 5]);
    let error = token_loss(TokenLoss::Nll, &tensors.hidden, &tensors.head(), &targets, &options(&problem))
        .unwrap_err();
    assert!(matches!(error, OpsError::Index { got: 101, limit: 101, .. }));
    assert_eq!(error.to_string(), "head: index 101 is outside 0..101");

    let labels = [None, Some(u32::MAX), Some(1)];
    let error =
        chunked_nll(&tensors.hidden, &tensors.weight, None, &labels, problem.options, 3.0).unwrap_err();
    assert_eq!(error.to_string(), "chunked_nll: index 4294967295 is outside 0..101");
}

#[test]
fn as_many_targets_as_tokens() {
    let problem = Problem { tokens: 3, ..Problem::new() };
    let tensors = problem.tensors();
    for targets in [vec![], vec![1, 2], vec![1; 4]] {
        let got = targets.len();
        let targets = Arc::new(targets);
        let error =
            token_loss(TokenLoss::Nll, &tensors.hidden, &tensors.head(), &targets, &options(&problem))
                .unwrap_err();
        assert_eq!(error.to_string(), format!("head: `targets` has shape [{got}], expected [3]"));
        let labels = vec![Some(1); got];
        let error =
            chunked_nll(&tensors.hidden, &tensors.weight, None, &labels, problem.options, 3.0).unwrap_err();
        let said = format!("chunked_nll: `labels` has shape [{got}], expected [3]");
        assert_eq!(error.to_string(), said);
        let error =
            token_loss(TokenLoss::Nll, &tensors.hidden, &tensors.head(), &labels[..], &options(&problem));
        assert_eq!(error.unwrap_err().to_string(), said);
    }
}
