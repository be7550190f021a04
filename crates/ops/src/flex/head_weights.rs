//! [`crate::head_weights()`] on the CPU.

use super::host::{Host, tensor};
use crate::head_weights::{HeadSteps, LINE, OP};
use crate::{AnyTensor, OpsError, apply};

fn softplus(x: f32) -> f32 {
    if x > LINE { x } else { x.exp().ln_1p() }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// See [`crate::head_weights()`].
pub(crate) fn head_weights(of: &HeadSteps) -> Result<AnyTensor, OpsError> {
    let inputs = of.inputs();
    let [tokens, heads] = crate::check::matrix(&of.steps)?;
    apply(OP, &inputs, |plain, wanted| {
        // Small, and in whichever dtype they are stored.
        let (bias, rate) = (plain[1].to_f32(), plain[2].to_f32());
        let rate: Vec<f32> = rate.into_iter().map(f32::exp).collect();
        let (steps, learning) = (Host::f32_of(OP, "steps", &plain[0])?, plain.get(3));
        let learning = learning.map(|learning| Host::f32_of(OP, "learning", learning)).transpose()?;
        let n = tokens * heads;
        let mut weights = vec![0.0; 2 * n];
        let (decay, beta) = weights.split_at_mut(n);
        for (i, (&x, (decay, beta))) in steps.f32().iter().zip(decay.iter_mut().zip(beta)).enumerate() {
            let step = softplus(x + bias[i % heads]);
            *decay = -step * rate[i % heads];
            *beta = learning.as_ref().map_or(step, |learning| sigmoid(learning.f32()[i]));
        }
        let wanted = wanted.to_vec();
        let backward = move |upstream: AnyTensor| {
            let dy = Host::of(&upstream).expect("invariant: a gradient has its output's backend");
            let (d_decay, d_beta) = dy.f32().split_at(n);
            let (mut of_steps, mut of_learning) = (vec![0.0; n], Vec::new());
            let (mut of_bias, mut of_rate) = (vec![0.0; heads], vec![0.0; heads]);
            for (i, &x) in steps.f32().iter().enumerate() {
                let (head, d_beta) = (i % heads, d_beta[i]);
                let x = x + bias[head];
                let mut of_step = -d_decay[i] * rate[head];
                match &learning {
                    Some(learning) => {
                        let share = sigmoid(learning.f32()[i]);
                        of_learning.push(d_beta * share * (1.0 - share));
                    }
                    None => of_step += d_beta,
                }
                of_steps[i] = of_step * sigmoid(x);
                of_bias[head] += of_steps[i];
                of_rate[head] -= d_decay[i] * softplus(x) * rate[head];
            }
            let (rows, numbers) = ([tokens, heads], [heads]);
            let all: [(Vec<f32>, &[usize]); 4] =
                [(of_steps, &rows), (of_bias, &numbers), (of_rate, &numbers), (of_learning, &rows)];
            let all = all.into_iter().zip(wanted);
            all.map(|((values, shape), wanted)| wanted.then(|| tensor(values, shape))).collect()
        };
        Ok((tensor(weights, &[2, n]), Box::new(backward)))
    })
}
