//! [`crate::experts()`] on CPU kernels.

use burnish_core::{LinearPart, LinearParts};
use burnish_cpu_kernels as kernels;

use super::host::{Host, tensor};
use crate::experts::{ExpertLayer, Experts};
use crate::{AnyTensor, OpsError, Routing, apply};

const OP: &str = "experts";

/// Host views of one layer of all experts, whose shapes have been checked.
struct View {
    /// Experts, outputs, inputs of one.
    sizes: [usize; 3],
    rank: usize,
    parts: LinearParts<Host>,
    /// B by expert.
    b: Option<Vec<f32>>,
    scale: f32,
}

/// `[out, rank * experts]` as `[experts, out, rank]`.
fn by_expert(b: &[f32], [experts, out, rank]: [usize; 3]) -> Vec<f32> {
    let mut to = vec![0.0; b.len()];
    for e in 0..experts {
        for o in 0..out {
            for r in 0..rank {
                to[(e * out + o) * rank + r] = b[o * rank * experts + r * experts + e];
            }
        }
    }
    to
}

/// The other way.
fn by_output(b: &[f32], [experts, out, rank]: [usize; 3]) -> Vec<f32> {
    let mut to = vec![0.0; b.len()];
    for e in 0..experts {
        for o in 0..out {
            for r in 0..rank {
                to[o * rank * experts + r * experts + e] = b[(e * out + o) * rank + r];
            }
        }
    }
    to
}

impl View {
    fn new(layer: &ExpertLayer) -> Result<Self, OpsError> {
        let shape = layer.weight.shape();
        let sizes = [shape[0], shape[1], shape[2]];
        let rank = layer.rank(sizes[0]);
        let parts = layer.parts().try_map(|part, tensor| match part {
            LinearPart::Weight => Host::weight_of(OP, part.name(), tensor),
            _ => Host::f32_of(OP, part.name(), tensor),
        })?;
        let b = parts.lora.as_ref().map(|lora| by_expert(lora.b.f32(), [sizes[0], sizes[1], rank]));
        let scale = layer.low_rank.as_ref().map_or(1.0, |low| low.scale);
        Ok(Self { sizes, rank, parts, b, scale })
    }

    fn kernel(&self) -> kernels::ExpertMatrix<'_> {
        let low_rank = self.parts.lora.as_ref().zip(self.b.as_ref());
        kernels::ExpertMatrix {
            weight: self.parts.weight.weight(),
            bias: self.parts.bias.as_ref().map(Host::f32),
            low_rank: low_rank.map(|(lora, b)| kernels::ExpertLowRank {
                rank: self.rank,
                a: lora.a.f32(),
                b,
                scale: self.scale,
            }),
        }
    }

    /// The gradients of the parts as tensors, in order.
    fn gradients(&self, found: LinearParts<Option<Vec<f32>>>) -> Vec<Option<AnyTensor>> {
        let ([experts, out, input], rank) = (self.sizes, self.rank);
        let of = |(part, gradient): (LinearPart, Option<Vec<f32>>)| {
            gradient.map(|gradient| match part {
                LinearPart::Weight => tensor(gradient, &[experts, out, input]),
                LinearPart::LoraA => tensor(gradient, &[experts * rank, input]),
                LinearPart::LoraB => {
                    tensor(by_output(&gradient, [experts, out, rank]), &[out, rank * experts])
                }
                _ => tensor(gradient, &[experts, out]),
            })
        };
        found.into_iter().map(of).collect()
    }
}

struct Views {
    up: View,
    down: View,
    gate: burnish_core::ExpertGate,
    compute: burnish_core::Compute,
}

impl Views {
    fn new(experts: &Experts) -> Result<Self, OpsError> {
        let (up, down) = (View::new(&experts.gate_up)?, View::new(&experts.down)?);
        Ok(Self { up, down, gate: experts.gate, compute: experts.compute })
    }

    fn kernel(&self) -> kernels::Experts<'_> {
        let [count, hidden, inner] = self.down.sizes;
        let (gate_up, down) = (self.up.kernel(), self.down.kernel());
        kernels::Experts { count, hidden, inner, gate_up, down, gate: self.gate, compute: self.compute }
    }
}

pub(crate) fn experts_decode(
    x: &AnyTensor,
    routing: &Routing,
    experts: &Experts,
) -> Result<AnyTensor, OpsError> {
    let [tokens, hidden] = crate::check::matrix(x)?;
    let views = Views::new(experts)?;
    let (x, weights) = (Host::f32_of(OP, "x", x)?, Host::f32_of(OP, "weights", &routing.weights)?);
    let y =
        kernels::experts_decode(tokens, x.f32(), weights.f32(), &routing.experts.to_host(), &views.kernel());
    Ok(tensor(y, &[tokens, hidden]))
}

pub(crate) fn experts(x: &AnyTensor, routing: &Routing, experts: &Experts) -> Result<AnyTensor, OpsError> {
    let [tokens, hidden] = crate::check::matrix(x)?;
    let chosen = routing.experts.to_host();
    let each = routing.weights.shape()[1];
    apply(OP, &experts.inputs(x, routing), |plain, wanted| {
        let views = Views::new(experts)?;
        let (x, weights) = (Host::f32_of(OP, "x", &plain[0])?, Host::f32_of(OP, "weights", &plain[1])?);
        let mut asked = wanted.iter().copied();
        let mut next = || asked.next().unwrap_or(false);
        let (dx, dweights) = (next(), next());
        let gate_up = experts.gate_up.parts().fill(&mut asked);
        let ask =
            kernels::ExpertsWanted { dx, dweights, gate_up, down: experts.down.parts().fill(&mut asked) };
        let out = kernels::experts_forward(tokens, x.f32(), weights.f32(), &chosen, &views.kernel());
        let saved = out.saved;
        let backward = Box::new(move |upstream: AnyTensor| {
            let dy = Host::of(&upstream).expect("invariant: a gradient has its output's backend");
            let (x, weights) = (x.f32(), weights.f32());
            let grad = kernels::experts_backward(
                tokens,
                x,
                weights,
                &chosen,
                &views.kernel(),
                &saved,
                dy.f32(),
                &ask,
            );
            let mut all = vec![
                grad.dx.map(|g| tensor(g, &[tokens, hidden])),
                grad.dweights.map(|g| tensor(g, &[tokens, each])),
            ];
            all.extend(views.up.gradients(grad.gate_up));
            all.extend(views.down.gradients(grad.down));
            all
        });
        Ok((tensor(out.y, &[tokens, hidden]), backward))
    })
}
