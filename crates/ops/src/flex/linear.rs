//! [`crate::linears`] on CPU kernels.

use burnish_kernels as kernels;

use super::host::{Host, tensor};
use crate::linear::{Dropout, Linear, LinearInput, Magnitude};
use crate::{AnyTensor, OpsError, apply};

const OP: &str = "linears";

/// Host views of a [`Linear`] whose shapes have been checked.
#[derive(Clone)]
pub(crate) struct LinearView {
    out: usize,
    weight: Host,
    bias: Option<Host>,
    low_rank: Option<LowRankView>,
}

#[derive(Clone)]
struct LowRankView {
    rank: usize,
    a: Host,
    b: Host,
    b_bias: Option<Host>,
    scale: f32,
    dropout: Option<Dropout>,
    magnitude: Option<MagnitudeView>,
}

#[derive(Clone)]
pub(super) struct MagnitudeView {
    pub(super) value: Host,
    pub(super) norm: Host,
    /// Whether the forward keeps what the output does not tell: see [`Self::keep`].
    kept: bool,
}

impl MagnitudeView {
    pub(super) fn new(op: &'static str, m: &Magnitude) -> Result<Self, OpsError> {
        Ok(Self {
            value: Host::f32_of(op, "lora_magnitude_vector", &m.value)?,
            norm: Host::f32_of(op, "norm of the adapted weight", &m.norm)?,
            kept: false,
        })
    }

    /// `m / norm`.
    pub(super) fn gains(&self) -> Vec<f32> {
        self.value.f32().iter().zip(self.norm.f32()).map(|(m, n)| m / n).collect()
    }

    /// The gradient needs the output before the factors: where nothing was added to it and no magnitude is zero, the
    /// output itself is as good (`y / m = z / norm`) and is kept by whoever reads it next.
    fn keep(&mut self, added: bool) {
        self.kept = added || self.value.f32().contains(&0.0);
    }

    /// `dm = sum dy z / norm`, or `sum dy y / m`.
    pub(super) fn grad(
        &self,
        tokens: usize,
        dy: (&[f32], usize, usize),
        z: Option<&[f32]>,
        y: (&[f32], usize, usize),
    ) -> Vec<f32> {
        let n = self.value.f32().len();
        let (from, over) = match z {
            Some(z) => ((z, n, 0), &self.norm),
            None => (y, &self.value),
        };
        let mut sums = kernels::column_dots(tokens, n, dy, from);
        sums.iter_mut().zip(over.f32()).for_each(|(s, d)| *s /= d);
        sums
    }
}

impl LinearView {
    /// Decides what the forward keeps for the magnitude's gradient, if that is wanted.
    fn keep(&mut self, wanted: bool, residual: bool) {
        let bias = self.bias.is_some();
        if let Some(low) = &mut self.low_rank
            && let Some(m) = low.magnitude.as_mut().filter(|_| wanted)
        {
            m.keep(residual || bias || low.dropout.is_some());
        }
    }

    pub(crate) fn new(op: &'static str, layer: &Linear) -> Result<Self, OpsError> {
        let vector = |what, t: &Option<AnyTensor>| -> Result<Option<Host>, OpsError> {
            t.as_ref().map(|t| Host::f32_of(op, what, t)).transpose()
        };
        let low_rank = match &layer.low_rank {
            None => None,
            Some(l) => Some(LowRankView {
                rank: l.a.shape()[0],
                a: Host::f32_of(op, "lora_A", &l.a)?,
                b: Host::f32_of(op, "lora_B", &l.b)?,
                b_bias: vector("lora_B.bias", &l.b_bias)?,
                scale: l.scale,
                dropout: l.dropout.clone().filter(|d| d.p > 0.0),
                magnitude: l.magnitude.as_ref().map(|m| MagnitudeView::new(op, m)).transpose()?,
            }),
        };
        Ok(Self {
            out: layer.out(),
            weight: Host::weight_of(op, "weight", &layer.weight)?,
            bias: vector("bias", &layer.bias)?,
            low_rank,
        })
    }

    fn magnitude(&self) -> Option<&MagnitudeView> {
        self.low_rank.as_ref().and_then(|l| l.magnitude.as_ref())
    }

    pub(crate) fn kernel(&self) -> kernels::Linear<'_> {
        kernels::Linear {
            out: self.out,
            weight: self.weight.weight(),
            bias: self.bias.as_ref().map(Host::f32),
            low_rank: self.low_rank.as_ref().map(|l| kernels::LowRank {
                rank: l.rank,
                a: l.a.f32(),
                b: l.b.f32(),
                b_bias: l.b_bias.as_ref().map(Host::f32),
                scale: l.scale,
                dropout: l.dropout.as_ref().map(|d| kernels::Dropout {
                    key: d.key,
                    p: d.p,
                    rows: &d.rows,
                    first_column: d.first_column,
                }),
                magnitude: l.magnitude.as_ref().map(|m| kernels::Magnitude {
                    m: m.value.f32(),
                    norm: m.norm.f32(),
                    keep: m.kept,
                }),
            }),
        }
    }
}

/// Whether the arithmetic is to be in f64, which kernels do not do.
pub(crate) fn is_f64(t: &AnyTensor) -> bool {
    t.dtype() == Some(crate::Dtype::F64)
}

/// [`crate::squared_row_norms`], or of a `table` [`crate::squared_column_norms`].
pub(crate) fn squared_norms(
    weight: &AnyTensor,
    a: &AnyTensor,
    b: &AnyTensor,
    scale: f32,
    table: bool,
) -> Result<AnyTensor, OpsError> {
    const OP: &str = "norms";
    let [rows, columns] = crate::check::matrix(weight)?;
    let rank = a.shape()[0];
    let (w, a, b) =
        (Host::weight_of(OP, "weight", weight)?, Host::f32_of(OP, "A", a)?, Host::f32_of(OP, "B", b)?);
    let norms = if table { kernels::squared_column_norms } else { kernels::squared_row_norms };
    let squares = norms(rows, columns, w.weight(), rank, a.f32(), b.f32(), scale);
    let squares: Vec<f32> = squares.iter().map(|&s| s as f32).collect();
    let n = squares.len();
    Ok(tensor(squares, &[n]))
}

enum InputView {
    Plain(Host),
    RmsNorm { x: Host, gamma: Host, eps: f32 },
    SwiGlu(Host),
}

impl InputView {
    fn new(input: &LinearInput) -> Result<Self, OpsError> {
        Ok(match input {
            LinearInput::Plain(x) => Self::Plain(Host::f32_of(OP, "x", x)?),
            LinearInput::SwiGlu(x) => Self::SwiGlu(Host::f32_of(OP, "x", x)?),
            LinearInput::RmsNorm { x, gamma, eps } => Self::RmsNorm {
                x: Host::f32_of(OP, "x", x)?,
                gamma: Host::f32_of(OP, "gamma", gamma)?,
                eps: *eps,
            },
        })
    }

    fn kernel(&self) -> kernels::Input<'_> {
        match self {
            Self::Plain(x) => kernels::Input::Plain(x.f32()),
            Self::RmsNorm { x, gamma, eps } => {
                kernels::Input::RmsNorm { x: x.f32(), gamma: gamma.f32(), eps: *eps }
            }
            Self::SwiGlu(x) => kernels::Input::SwiGlu(x.f32()),
        }
    }
}

/// Tokens, and inputs of the layers.
fn dims(input: &LinearInput) -> Result<(usize, usize), OpsError> {
    let [tokens, width] = crate::check::matrix(input.tensor())?;
    Ok((tokens, if matches!(input, LinearInput::SwiGlu(_)) { width / 2 } else { width }))
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
    let (x, gamma) = match input {
        LinearInput::Plain(x) | LinearInput::SwiGlu(x) => (x, None),
        LinearInput::RmsNorm { x, gamma, .. } => (x, Some(gamma)),
    };
    let (tokens, in_dim) = dims(input)?;
    let total: usize = layers.iter().map(Linear::out).sum();

    // Inputs in a fixed order: x, gamma, each layer's tensors, residual.
    let mut inputs = vec![x.clone()];
    inputs.extend(gamma.cloned());
    for layer in layers {
        inputs.extend(layer.tensors());
    }
    inputs.extend(residual.cloned());

    apply(OP, &inputs, |_, wanted| {
        let view = InputView::new(input)?;
        let mut views = layers.iter().map(|l| LinearView::new(OP, l)).collect::<Result<Vec<_>, _>>()?;
        let residual = residual.map(|r| Host::f32_of(OP, "residual", r)).transpose()?;
        let mut last = 1 + usize::from(gamma.is_some());
        for (view, layer) in views.iter_mut().zip(layers) {
            last += layer.tensors().len();
            // The magnitude is the last of a layer's tensors.
            view.keep(wanted[last - 1], residual.is_some());
        }
        let linears: Vec<_> = views.iter().map(LinearView::kernel).collect();
        let out = kernels::linears_forward(
            tokens,
            in_dim,
            view.kernel(),
            &linears,
            residual.as_ref().map(Host::f32),
        );
        let y = tensor(out.y, &[tokens, total]);
        drop(linears);

        let saved = out.saved;
        let wanted = wanted.to_vec();
        // Without a copy: the output is alive as long as its reader needs it.
        let magnified = layers.iter().any(|l| l.low_rank.as_ref().is_some_and(|l| l.magnitude.is_some()));
        let output = if magnified { Host::of(&y) } else { None };
        let has_gamma = gamma.is_some();
        let has_residual = residual.is_some();
        drop(residual);
        let backward = Box::new(move |upstream: AnyTensor| {
            let dy = Host::of(&upstream).expect("invariant: a gradient has its output's backend");
            let linears: Vec<_> = views.iter().map(LinearView::kernel).collect();
            let mut at = 0;
            let mut next = || {
                at += 1;
                wanted[at - 1]
            };
            // Per layer: whether its magnitude's gradient is wanted.
            let mut magnitudes = Vec::with_capacity(linears.len());
            let ask = kernels::Wanted {
                dx: next(),
                dgamma: has_gamma && next(),
                linears: linears
                    .iter()
                    .map(|l| {
                        let ask = kernels::WantedLinear {
                            weight: next(),
                            bias: l.bias.is_some() && next(),
                            a: l.low_rank.is_some() && next(),
                            b: l.low_rank.is_some() && next(),
                            b_bias: l.low_rank.as_ref().is_some_and(|l| l.b_bias.is_some()) && next(),
                        };
                        magnitudes
                            .push(l.low_rank.as_ref().is_some_and(|l| l.magnitude.is_some()).then(&mut next));
                        ask
                    })
                    .collect(),
            };
            let grad =
                kernels::linears_backward(tokens, in_dim, view.kernel(), &linears, &saved, dy.f32(), &ask);
            let width = match view {
                InputView::SwiGlu(_) => 2 * in_dim,
                _ => in_dim,
            };
            let mut all = vec![grad.dx.map(|g| tensor(g, &[tokens, width]))];
            if has_gamma {
                all.push(grad.dgamma.map(|g| tensor(g, &[in_dim])));
            }
            let mut column = 0;
            for (j, (l, g)) in linears.iter().zip(grad.linears).enumerate() {
                all.push(g.weight.map(|g| tensor(g, &[l.out, in_dim])));
                if l.bias.is_some() {
                    all.push(g.bias.map(|g| tensor(g, &[l.out])));
                }
                if let Some(low) = &l.low_rank {
                    all.push(g.a.map(|g| tensor(g, &[low.rank, in_dim])));
                    all.push(g.b.map(|g| tensor(g, &[l.out, low.rank])));
                    if low.b_bias.is_some() {
                        all.push(g.b_bias.map(|g| tensor(g, &[l.out])));
                    }
                    if let (Some(wanted), Some(m)) = (magnitudes[j], views[j].magnitude()) {
                        let y = output.as_ref().expect("invariant: kept where there is a magnitude").f32();
                        let (dy, z) = ((dy.f32(), total, column), saved.z[j].as_deref());
                        let grad = wanted.then(|| m.grad(tokens, dy, z, (y, total, column)));
                        all.push(grad.map(|g| tensor(g, &[l.out])));
                    }
                }
                column += l.out;
            }
            if has_residual {
                all.push(Some(upstream));
            }
            all
        });
        Ok((y, backward))
    })
}
