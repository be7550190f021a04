//! [`crate::linears`] on CPU kernels.

use burn::tensor::DType;
use burnish_core::{Activation, Compute, LinearPart, LinearParts};
use burnish_cpu_kernels as kernels;

use super::host::{Host, tensor};
use super::magnitude::MagnitudeView;
use crate::linear::{Dropout, Linear, LinearInput};
use crate::{AnyTensor, OpsError, apply};

const OP: &str = "linears";

/// Host views of a [`Linear`] whose shapes have been checked.
#[derive(Clone)]
pub(crate) struct LinearView {
    out: usize,
    input: usize,
    rank: usize,
    parts: LinearParts<Host>,
    /// How the adapter is applied.
    scale: f32,
    dropout: Option<Dropout>,
    magnitude: Option<MagnitudeView>,
    compute: Compute,
}

impl LinearView {
    pub(crate) fn new(op: &'static str, layer: &Linear) -> Result<Self, OpsError> {
        let low = layer.low_rank.as_ref();
        let magnitude = low.and_then(|low| low.magnitude.as_ref());
        Ok(Self {
            out: layer.out(),
            input: layer.weight.shape()[1],
            rank: layer.rank(),
            parts: layer.parts().try_map(|part, tensor| match part {
                LinearPart::Weight => Host::weight_of(op, part.name(), tensor),
                _ => Host::f32_of(op, part.name(), tensor),
            })?,
            scale: low.map_or(1.0, |low| low.scale),
            dropout: low.and_then(|low| low.dropout.clone()).filter(|dropout| dropout.p > 0.0),
            magnitude: magnitude.map(|magnitude| MagnitudeView::new(op, magnitude)).transpose()?,
            compute: layer.compute,
        })
    }

    /// Decides what the forward keeps for the magnitude's gradient, if that is wanted.
    fn keep(&mut self, wanted: &LinearParts<bool>, residual: bool) {
        let added = residual || self.parts.bias.is_some() || self.dropout.is_some();
        if let Some(magnitude) = self.magnitude.as_mut().filter(|_| wanted.wants(LinearPart::Magnitude)) {
            magnitude.keep(added);
        }
    }

    pub(crate) fn kernel(&self) -> kernels::Linear<'_> {
        kernels::Linear {
            out: self.out,
            compute: self.compute,
            weight: self.parts.weight.weight(),
            bias: self.parts.bias.as_ref().map(Host::f32),
            low_rank: self.parts.lora.as_ref().map(|lora| kernels::LowRank {
                rank: self.rank,
                a: lora.a.f32(),
                b: lora.b.f32(),
                b_bias: lora.b_bias.as_ref().map(Host::f32),
                scale: self.scale,
                dropout: self.dropout.as_ref().map(|d| kernels::Dropout {
                    key: d.key,
                    p: d.p,
                    rows: &d.rows,
                    first_column: d.first_column,
                }),
                magnitude: self.magnitude.as_ref().map(MagnitudeView::kernel),
            }),
        }
    }

    /// The gradients of the parts as tensors, in order.
    pub(crate) fn gradients(
        &self,
        found: LinearParts<Option<Vec<f32>>>,
    ) -> impl Iterator<Item = Option<AnyTensor>> {
        found.into_iter().map(|(part, gradient)| {
            gradient.map(|gradient| tensor(gradient, &part.shape(false, self.out, self.input, self.rank)))
        })
    }
}

enum InputView {
    Plain(Host),
    Norm(Box<NormView>),
    Activated { x: Host, activation: Activation, gated: bool },
}

struct NormView {
    x: Host,
    gamma: Host,
    beta: Option<Host>,
    eps: f32,
    centered: bool,
}

impl InputView {
    fn new(input: &LinearInput) -> Result<Self, OpsError> {
        let x = Host::f32_of(OP, "x", input.tensor())?;
        let norm = |eps: f32, centered: bool| {
            let (gamma, beta) = input.norm().expect("invariant: the input is a norm");
            let (gamma, x) = (Host::f32_of(OP, "gamma", gamma)?, x.clone());
            let beta = beta.map(|beta| Host::f32_of(OP, "beta", beta)).transpose()?;
            Ok(Self::Norm(Box::new(NormView { x, gamma, beta, eps, centered })))
        };
        match *input {
            LinearInput::RmsNorm { eps, .. } => norm(eps, false),
            LinearInput::LayerNorm { eps, .. } => norm(eps, true),
            _ => Ok(match input.activation() {
                Some((activation, gated)) => Self::Activated { x, activation, gated },
                None => Self::Plain(x),
            }),
        }
    }

    fn kernel(&self) -> kernels::Input<'_> {
        match self {
            Self::Plain(x) => kernels::Input::Plain(x.f32()),
            Self::Norm(norm) => {
                let (x, gamma, eps) = (norm.x.f32(), norm.gamma.f32(), norm.eps);
                if norm.centered {
                    let beta = norm.beta.as_ref().map(Host::f32);
                    return kernels::Input::LayerNorm { x, gamma, beta, eps };
                }
                kernels::Input::RmsNorm { x, gamma, eps }
            }
            &Self::Activated { ref x, activation, gated } => {
                kernels::Input::Activated { x: x.f32(), activation, gated }
            }
        }
    }
}

impl InputView {
    /// The gradients; the input's own as a tensor where it took the place of the input, which nobody else had.
    fn backward(
        mut self,
        (tokens, in_dim): (usize, usize),
        linears: &[kernels::Linear<'_>],
        saved: &kernels::LinearsSaved,
        dy: &[f32],
        ask: &kernels::Wanted,
    ) -> (kernels::LinearsGrad, Option<AnyTensor>) {
        let fits = ask.dx && ask.linears.iter().all(|part| !part.weight);
        if let Self::Activated { x, activation, gated } = &mut self
            && fits
            && let Some(values) = x.own_f32()
        {
            let f = (*activation, *gated);
            let grad = kernels::activated_linears_backward_in_place(
                tokens, in_dim, values, f, linears, saved, dy, ask,
            );
            let Self::Activated { x, .. } = self else {
                unreachable!("invariant: it is behind an activation")
            };
            return (grad, x.into_tensor());
        }
        (kernels::linears_backward(tokens, in_dim, self.kernel(), linears, saved, dy, ask), None)
    }
}

/// Tokens, and inputs of the layers.
fn dims(input: &LinearInput) -> Result<(usize, usize), OpsError> {
    let [tokens, width] = crate::check::matrix(input.tensor())?;
    Ok((tokens, input.features(width)))
}

pub(crate) fn linears_decode(
    input: &LinearInput,
    layers: &[Linear],
    residual: Option<&AnyTensor>,
) -> Result<AnyTensor, OpsError> {
    let (tokens, in_dim) = dims(input)?;
    let total: usize = layers.iter().map(Linear::out).sum();
    let view = InputView::new(input)?;
    let views = layers.iter().map(|l| LinearView::new(OP, l)).collect::<Result<Vec<_>, _>>()?;
    let residual = residual.map(|r| Host::f32_of(OP, "residual", r)).transpose()?;
    let linears: Vec<_> = views.iter().map(LinearView::kernel).collect();
    let y =
        kernels::linears_decode(tokens, in_dim, view.kernel(), &linears, residual.as_ref().map(Host::f32));
    Ok(tensor(y, &[tokens, total]))
}

pub(crate) fn linears(
    input: &LinearInput,
    layers: &[Linear],
    residual: Option<&AnyTensor>,
) -> Result<AnyTensor, OpsError> {
    recorded(input, layers, residual, true)
}

pub(crate) fn linears_unread(
    input: &LinearInput,
    layers: &[Linear],
    residual: Option<&AnyTensor>,
) -> Result<AnyTensor, OpsError> {
    recorded(input, layers, residual, false)
}

/// See [`LinearInput::out_dtype`].
pub(crate) fn dtype(_: &LinearInput, _: &[Linear]) -> DType {
    DType::F32
}

/// `reads`: whether somebody reads the output's values.
fn recorded(
    input: &LinearInput,
    layers: &[Linear],
    residual: Option<&AnyTensor>,
    reads: bool,
) -> Result<AnyTensor, OpsError> {
    let (tokens, in_dim) = dims(input)?;
    let total: usize = layers.iter().map(Linear::out).sum();

    // Inputs in a fixed order: x, gamma, beta, each layer's tensors, residual.
    let mut inputs = input.tensors();
    let [_, width] = crate::check::matrix(input.tensor())?;
    inputs.extend(layers.iter().flat_map(Linear::tensors));
    inputs.extend(residual.cloned());

    apply(OP, &inputs, |_, wanted| {
        let view = InputView::new(input)?;
        let mut views = layers.iter().map(|l| LinearView::new(OP, l)).collect::<Result<Vec<_>, _>>()?;
        let residual = residual.map(|r| Host::f32_of(OP, "residual", r)).transpose()?;
        let mut wanted = wanted.iter().copied();
        let (has_gamma, has_beta) = match input.norm() {
            Some((_, beta)) => (true, beta.is_some()),
            None => (false, false),
        };
        let mut next = |present: bool| present && wanted.next().unwrap_or(false);
        let ask = kernels::Wanted {
            dx: next(true),
            dgamma: next(has_gamma),
            dbeta: next(has_beta),
            linears: layers.iter().map(|layer| layer.parts().fill(&mut wanted)).collect(),
        };
        for (view, wanted) in views.iter_mut().zip(&ask.linears) {
            view.keep(wanted, residual.is_some());
        }
        let linears: Vec<_> = views.iter().map(LinearView::kernel).collect();
        let forward = if reads { kernels::linears_forward } else { kernels::linears_unread };
        let out = forward(tokens, in_dim, view.kernel(), &linears, residual.as_ref().map(Host::f32));
        let y = tensor(out.y, &[tokens, total]);
        drop(linears);

        let saved = out.saved;
        // Without a copy: the output is alive as long as its reader needs it.
        let magnified = views.iter().any(|view| view.magnitude.is_some());
        let output = if magnified { Host::of(&y) } else { None };
        let has_residual = residual.is_some();
        drop(residual);
        let backward = Box::new(move |upstream: AnyTensor| {
            let dy = Host::of(&upstream).expect("invariant: a gradient has its output's backend");
            let linears: Vec<_> = views.iter().map(LinearView::kernel).collect();
            let (grad, in_place) = view.backward((tokens, in_dim), &linears, &saved, dy.f32(), &ask);
            drop(linears);
            let mut all = vec![in_place.or(grad.dx.map(|g| tensor(g, &[tokens, width])))];
            for (has, of) in [(has_gamma, grad.dgamma), (has_beta, grad.dbeta)] {
                if has {
                    all.push(of.map(|g| tensor(g, &[in_dim])));
                }
            }
            let mut column = 0;
            for (j, (view, mut found)) in views.iter().zip(grad.linears).enumerate() {
                if let Some(m) =
                    view.magnitude.as_ref().filter(|_| ask.linears[j].wants(LinearPart::Magnitude))
                    && let Some(gradient) = found.get_mut(LinearPart::Magnitude)
                {
                    let y = output.as_ref().expect("invariant: kept where there is a magnitude").f32();
                    let (dy, z) = ((dy.f32(), total, column), saved.z[j].as_deref());
                    *gradient = Some(m.grad(tokens, dy, z, (y, total, column)));
                }
                all.extend(view.gradients(found));
                column += view.out;
            }
            if has_residual {
                all.push(Some(upstream));
            }
            all
        });
        Ok((y, backward))
    })
}
