//! Tokens to the ranks that have their experts and back, where they lie on the device.

use anyhow::Result;
use burn::tensor::Device;
use burnish_comm::{World, local};
use burnish_core::random::Stream;
use burnish_core::{Compute, ELSEWHERE, ExpertGate};
use burnish_ops::{Activation, AnyTensor, ExpertLayer, Experts, Routing, WIDENED_TOGETHER, experts};
use burnish_tp::{Split, TokenDispatcher, Tp};

use crate::case::{distance, to_f64};
use crate::{Check, Context};

const FEATURES: usize = 20;
const EXPERTS: usize = 7;
const PER_TOKEN: usize = 3;

/// A rank's tokens, their experts, and whose they are.
struct Rank {
    tokens: usize,
    experts: Vec<u32>,
    owners: Split,
}

impl Rank {
    /// Of three ranks; the last has no token, and no token goes to the first where it is `alone`.
    fn new(rank: usize, alone: bool) -> Result<Self> {
        let (tokens, owners) = ([33, 18, 0][rank], Split::balanced(EXPERTS, 3)?);
        let first = if alone { owners.range(0).map_or(0, |own| own.end) } else { 0 };
        let expert = |i: usize| match (i * 5 + rank) % 9 {
            8 => ELSEWHERE,
            other => (first + other % (EXPERTS - first)) as u32,
        };
        Ok(Self { tokens, experts: (0..tokens * PER_TOKEN).map(expert).collect(), owners })
    }

    /// The sum of the factors of the ranks that a token goes to.
    fn factor(&self, token: usize) -> f64 {
        let of = |rank: usize| {
            let own = self.owners.range(rank).unwrap_or(0..0);
            let experts = &self.experts[token * PER_TOKEN..][..PER_TOKEN];
            experts.iter().any(|&expert| own.contains(&(expert as usize)))
        };
        (0..self.owners.ranks()).filter(|&rank| of(rank)).map(factor).sum()
    }

    fn values(&self, name: &str) -> Vec<f32> {
        let stream = Stream::new(29, name);
        (0..(self.tokens * FEATURES) as u64).map(|i| stream.normal(i)).collect()
    }

    /// Each of `values` times its token's factor.
    fn factored(&self, values: &[f32]) -> Vec<f64> {
        let each = values.iter().enumerate();
        each.map(|(i, &x)| f64::from(x) * self.factor(i / FEATURES)).collect()
    }
}

/// What a rank makes of the tokens that it gets.
fn factor(rank: usize) -> f64 {
    rank as f64 + 1.5
}

/// [`factor`] times each, or what experts make where none came.
fn made(there: &TokenDispatcher, received: &AnyTensor, rank: usize) -> Result<AnyTensor> {
    if !there.experts().is_empty() {
        return Ok(AnyTensor::new(received.rank::<2>()? * factor(rank)));
    }
    let device = received.device();
    let zeros = |shape: &[usize]| AnyTensor::from_elements(vec![0.0; shape.iter().product()], shape, &device);
    let layer = |out: usize, input: usize| ExpertLayer {
        weight: zeros(&[1, out, input]).leaf(),
        bias: None,
        low_rank: None,
    };
    let gate = ExpertGate::Halves(Activation::Silu);
    let (gate_up, down) = (layer(4, FEATURES), layer(FEATURES, 2));
    let layers = Experts { gate_up, down, gate, compute: Compute::Fp32, widened_together: WIDENED_TOGETHER };
    let routing = Routing { weights: zeros(&[0, PER_TOKEN]), experts: there.experts().clone().into() };
    Ok(experts(received, &routing, &layers)?)
}

/// The largest error of a rank's outputs and gradients.
fn checked(world: &World, device: &Device, alone: bool, bound: f64) -> Result<f64> {
    let ranks = Tp::new(&world.group());
    let own = Rank::new(ranks.rank(), alone)?;
    let there = TokenDispatcher::new(&ranks, &own.experts, PER_TOKEN, &own.owners, "experts")?;
    let tensor = |values: &[f32]| AnyTensor::from_elements(values.to_vec(), &[own.tokens, FEATURES], device);
    let (x, upstream) = (own.values("x"), own.values("upstream"));
    let (leaf, pull) = (tensor(&x).leaf(), tensor(&upstream).untracked());
    let y = there.combine(&made(&there, &there.dispatch(&leaf)?, ranks.rank())?)?;
    let value = to_f64(&y)?;
    let mut gradients = (y.rank::<2>()? * pull.rank::<2>()?).sum().backward();
    ranks.check()?;
    let gradient = leaf.take_gradient(&mut gradients);
    let gradient = gradient.map(|gradient| to_f64(&gradient)).transpose()?.unwrap_or_default();
    let of_value = distance("the tokens", &value, &own.factored(&x), bound)?;
    Ok(of_value.max(distance("their gradients", &gradient, &own.factored(&upstream), bound)?))
}

fn check(title: &str, alone: bool) -> Check {
    Check::new("operation", title, move |context: &Context| {
        let bound = context.tolerance().plain;
        let found = local::run(3, |world| checked(&world, &context.device, alone, bound));
        let mut worst = 0.0_f64;
        for rank in found {
            worst = worst.max(rank??);
        }
        Ok(format!("{worst:.1e}, bound {bound:.0e}"))
    })
}

pub(super) fn checks() -> Vec<Check> {
    vec![
        check("tokens to experts of 3 ranks", false),
        check("tokens to experts of 3 ranks, none to the first", true),
    ]
}
