//! A module with one of everything, and runs of it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::{Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData, activation};
use burnish_core::random::Stream;
use burnish_zero::comm::{Group, local};
use burnish_zero::module::{ModuleError, Orientation, Pass, Role, Stepped, Wrap, Wrapped};
use burnish_zero::optim::{MuonOptions, Variant};
use burnish_zero::{Policy, ReduceWhen, Stage};

pub(crate) const VOCAB: usize = 7;
pub(crate) const WIDTH: usize = 6;
pub(crate) const INNER: usize = 8;

pub(crate) fn device() -> Device {
    Device::flex().autodiff()
}

/// A linear layer that draws nothing: Burn's generator is one for all threads of the process, and another test counts
/// on what it draws.
pub(crate) fn linear(inputs: usize, outputs: usize, device: &Device) -> Linear {
    LinearConfig::new(inputs, outputs).with_initializer(Initializer::Constant { value: 0.25 }).init(device)
}

/// Held by the tests that draw from that generator.
pub(crate) static DRAWING: Mutex<()> = Mutex::new(());

/// A layer: a bf16 matrix, four dimensions, a frozen matrix, and a vector that is tied to all other layers' and to the
/// module's.
#[derive(Module, Debug)]
pub(crate) struct Layer {
    pub(crate) norm: LayerNorm,
    pub(crate) up: Linear,
    pub(crate) gate: Param<Tensor<4>>,
    pub(crate) half: Param<Tensor<2>>,
    pub(crate) frozen: Linear,
    pub(crate) down: Linear,
    pub(crate) scale: Param<Tensor<1>>,
}

impl Layer {
    pub(crate) fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let h = self.up.forward(self.norm.forward(x.clone() * self.scale.val().unsqueeze()));
        let h = h * self.gate.val().reshape([1, INNER]);
        let h = h.cast(FloatDType::BF16).matmul(self.half.val()).cast(FloatDType::F32).tanh();
        x + self.down.forward(self.frozen.forward(h))
    }
}

/// A language model of nothing: tied embedding and head, an unused matrix, a matrix that only some samples use, and an
/// integer parameter.
#[derive(Module, Debug)]
pub(crate) struct Zoo {
    pub(crate) embed: Embedding,
    pub(crate) layers: Vec<Layer>,
    pub(crate) head: Param<Tensor<2>>,
    pub(crate) norm: LayerNorm,
    pub(crate) scale: Param<Tensor<1>>,
    pub(crate) unused: Linear,
    pub(crate) sometimes: Linear,
    pub(crate) table: Param<Tensor<1, Int>>,
}

/// Values that are functions of path and position.
struct Formula(Vec<String>);

impl ModuleMapper for Formula {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.0.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.0.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let stream = Stream::new(5, &self.0.join("."));
        param.map(|value| {
            let values: Vec<f32> =
                (0..value.shape().num_elements()).map(|i| 0.4 * stream.normal(i as u64)).collect();
            let device = value.device();
            let grad = value.is_require_grad();
            let new = Tensor::from_data(TensorData::new(values, value.shape()), (&device, value.dtype()));
            new.set_require_grad(grad)
        })
    }
}

impl Zoo {
    pub(crate) fn new(device: &Device) -> Self {
        let linear = |a, b| linear(a, b, device);
        let layers = (0..2)
            .map(|_| Layer {
                norm: LayerNormConfig::new(WIDTH).init(device),
                up: linear(WIDTH, INNER),
                gate: Param::from_tensor(Tensor::zeros([1, 2, 4, 1], device)),
                half: Param::from_tensor(Tensor::zeros([INNER, INNER], (device, burn::tensor::DType::BF16))),
                frozen: linear(INNER, INNER).no_grad(),
                down: linear(INNER, WIDTH),
                scale: Param::from_tensor(Tensor::zeros([WIDTH], device)),
            })
            .collect();
        let zoo = Self {
            embed: EmbeddingConfig::new(VOCAB, WIDTH).with_initializer(Initializer::Zeros).init(device),
            layers,
            head: Param::from_tensor(Tensor::zeros([VOCAB, WIDTH], device)),
            norm: LayerNormConfig::new(WIDTH).init(device),
            scale: Param::from_tensor(Tensor::zeros([WIDTH], device)),
            unused: linear(3, 5),
            sometimes: linear(WIDTH, WIDTH),
            table: Param::initialized(
                burn::module::ParamId::new(),
                Tensor::<1, Int>::from_ints([3, 1, 4, 1, 5], device),
            ),
        };
        let mut zoo = zoo.map(&mut Formula(Vec::new()));
        zoo.head = zoo.embed.weight.clone();
        let scale = zoo.layers[0].scale.clone();
        zoo.layers[1].scale = scale.clone();
        zoo.scale = scale;
        zoo
    }

    fn logits(
        &self,
        samples: &Range<usize>,
        layer: impl Fn(&Layer, Tensor<2>) -> Tensor<2>,
    ) -> (Tensor<2>, Tensor<2>) {
        let ids: Vec<i32> = samples.clone().map(|s| (s * 5 % VOCAB) as i32).collect();
        let mut targets = vec![0.0_f32; samples.len() * VOCAB];
        for (row, sample) in samples.clone().enumerate() {
            targets[row * VOCAB + (sample * 3 + 1) % VOCAB] = 1.0;
        }
        let count = samples.len();
        let device = self.embed.weight.val().device();
        let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [count]), &device);
        let targets = Tensor::from_data(TensorData::new(targets, [count, VOCAB]), &device);
        let mut x = self.embed.weight.val().select(0, ids);
        for l in &self.layers {
            x = layer(l, x);
        }
        // Samples from the fourth on.
        if samples.start >= 3 {
            x = self.sometimes.forward(x);
        }
        let x = self.norm.forward(x) * self.scale.val().unsqueeze();
        (x.matmul(self.head.val().transpose()), targets)
    }
}

fn cross_entropy(logits: Tensor<2>, targets: Tensor<2>, over: f32) -> Tensor<1> {
    (activation::log_softmax(logits, 1) * targets).sum() / -over
}

/// The loss of some samples, by a module that knows of nothing.
pub(crate) fn loss(zoo: &Zoo, samples: Range<usize>, over: f32) -> Tensor<1> {
    let (logits, targets) = zoo.logits(&samples, Layer::forward);
    cross_entropy(logits, targets, over)
}

/// The same by blocks.
pub(crate) fn loss_by_blocks(pass: &Pass<'_, Zoo>, samples: Range<usize>, over: f32) -> Tensor<1> {
    let block = |layer: &Layer, x| pass.block(layer, x, Layer::forward).unwrap();
    let (logits, targets) = pass.logits(&samples, block);
    cross_entropy(logits, targets, over)
}

/// Muon, and what Burn does not say of the matrices of a struct of one's own.
pub(crate) fn muon(policy: Policy, variant: Variant) -> Wrap {
    let wrap = Wrap::new(policy).muon(MuonOptions { variant, ..MuonOptions::default() });
    wrap.orientation("layers.*.half", Orientation::InOut).role("layers.*.gate", Role::Norm)
}

/// A run of it.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) stage: Stage,
    pub(crate) blocks: bool,
    pub(crate) steps: usize,
    pub(crate) lr: f64,
    /// Of each rank.
    pub(crate) micro_batches: usize,
    pub(crate) settings: Option<fn(Policy) -> Wrap>,
    pub(crate) reduce: Option<ReduceWhen>,
    /// Losses are uneven shares of one sum, over 8 samples per step.
    pub(crate) uneven: bool,
}

/// What it leaves.
#[derive(Debug, PartialEq)]
pub(crate) struct Left {
    pub(crate) losses: Vec<f64>,
    pub(crate) norms: Vec<f64>,
    pub(crate) weights: BTreeMap<String, Vec<f32>>,
    pub(crate) slots: BTreeMap<(String, &'static str), Vec<f32>>,
}

impl Run {
    pub(crate) fn new(stage: Stage) -> Self {
        Self {
            stage,
            blocks: false,
            steps: 4,
            lr: 0.01,
            micro_batches: 1,
            settings: None,
            reduce: None,
            uneven: false,
        }
    }

    pub(crate) fn wrap(&self) -> Wrap {
        let mut policy = Policy { persist_below: 0, ..Policy::new(self.stage) };
        policy.reduce = self.reduce.unwrap_or(policy.reduce);
        let wrap =
            self.settings.map_or_else(|| Wrap::new(policy.clone()), |settings| settings(policy.clone()));
        if self.blocks { wrap.block("layers.*") } else { wrap }
    }

    pub(crate) fn wrapped(&self, group: &Group) -> Result<Wrapped<Zoo>, ModuleError> {
        self.wrap().over(group, Zoo::new(&device()))
    }

    pub(crate) fn alone(&self) -> Left {
        self.train(&Group::alone()).unwrap()
    }

    /// On every rank; asserts that all end with the same.
    pub(crate) fn over(&self, world: usize) -> Left {
        let ranks = local::run(world, |w| self.train(&w.group()).inspect_err(|e| w.fail(&e.to_string())));
        let mut ranks: Vec<Left> = ranks.into_iter().map(|r| r.unwrap().unwrap()).collect();
        let others = ranks.split_off(1);
        let mut first = ranks.remove(0);
        for other in others {
            assert_eq!(
                (&other.weights, &other.losses, &other.norms),
                (&first.weights, &first.losses, &first.norms)
            );
            for (key, values) in other.slots {
                first.slots.entry(key).or_default().extend(values);
            }
        }
        first
    }

    fn train(&self, group: &Group) -> Result<Left, ModuleError> {
        let mut model = self.wrapped(group)?;
        let mut left =
            Left { losses: Vec::new(), norms: Vec::new(), weights: BTreeMap::new(), slots: BTreeMap::new() };
        for step in 0..self.steps {
            self.step(&mut model, group, step, &mut left)?;
        }
        self.finish(&model, &mut left)?;
        Ok(left)
    }

    /// A step: every rank and micro-batch has two samples, or an uneven share of eight.
    pub(crate) fn step(
        &self,
        model: &mut Wrapped<Zoo>,
        group: &Group,
        step: usize,
        left: &mut Left,
    ) -> Result<(), ModuleError> {
        let mut losses = 0.0;
        for m in 0..self.micro_batches {
            let number = group.rank() * self.micro_batches + m;
            let (samples, over) = if self.uneven {
                ([0..3, 3..7, 7..8][number].clone(), 8.0)
            } else {
                (2 * number..2 * number + 2, 2.0)
            };
            let samples = samples.start + step..samples.end + step;
            let pass = model.micro_batch(m + 1 == self.micro_batches)?;
            let loss =
                if self.blocks { loss_by_blocks(&pass, samples, over) } else { loss(&pass, samples, over) };
            losses += f64::from(loss.clone().into_scalar::<f32>());
            pass.backward(loss)?;
        }
        left.losses.push(model.mean(losses / self.micro_batches as f64)?);
        let Stepped::Applied(applied) = model.step(self.lr)? else { panic!("gradients are finite") };
        left.norms.push(applied.grad_norm);
        Ok(())
    }

    pub(crate) fn finish(&self, model: &Wrapped<Zoo>, left: &mut Left) -> Result<(), ModuleError> {
        for parameter in model.registry().iter() {
            left.weights.insert(parameter.name.clone(), model.read(&parameter.name)?.to_f32());
        }
        for rows in model.state()? {
            if let Some(slot) = rows.slot {
                left.slots.insert((rows.parameter, slot), rows.tensor.to_f32());
            }
        }
        Ok(())
    }
}

impl Left {
    pub(crate) fn assert_same(&self, other: &Self, what: &str) {
        let near =
            |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6 * (1.0 + b.abs()));
        assert!(near(&self.losses, &other.losses), "{what}: {:?} {:?}", self.losses, other.losses);
        assert!(near(&self.norms, &other.norms), "{what}: {:?} {:?}", self.norms, other.norms);
        assert_eq!(self.weights, other.weights, "{what}");
        assert_eq!(self.slots, other.slots, "{what}");
    }

    /// Up to rounding: bf16 weights up to one unit in the last place.
    pub(crate) fn assert_close(&self, other: &Self, what: &str) {
        assert_eq!(self.weights.len(), other.weights.len());
        for (path, values) in &self.weights {
            let tolerance = if path.ends_with("half") { 1.0 / 128.0 } else { 2e-4 };
            for (a, b) in values.iter().zip(&other.weights[path]) {
                assert!((a - b).abs() <= tolerance * (1.0 + b.abs()), "{what}, {path}: {a} {b}");
            }
        }
        assert_eq!(self.slots.keys().collect::<Vec<_>>(), other.slots.keys().collect::<Vec<_>>(), "{what}");
    }
}

/// The weights after one step of AdamW without decay, worked out from Burn's own gradients of the bare module.
pub(crate) fn by_hand(run: &Run) -> BTreeMap<String, Vec<f32>> {
    struct Step<'a> {
        path: Vec<String>,
        gradients: &'a burn::tensor::Gradients,
        lr: f32,
        weights: BTreeMap<String, Vec<f32>>,
    }

    impl ModuleVisitor for Step<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_owned());
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let values = |t: Tensor<D>| t.into_data().convert::<f32>().try_into_vec::<f32>().unwrap();
            let value = param.val();
            let gradient = value.grad(self.gradients).map(values);
            let mut weight = values(value.inner());
            if let Some(gradient) = gradient {
                for (w, g) in weight.iter_mut().zip(gradient) {
                    *w -= self.lr * g / (g.abs() + 1e-8);
                }
            }
            self.weights.insert(self.path.join("."), weight);
        }
    }

    let zoo = Zoo::new(&device());
    let gradients = loss(&zoo, 0..2, 2.0).backward();
    let mut step =
        Step { path: Vec::new(), gradients: &gradients, lr: run.lr as f32, weights: BTreeMap::new() };
    zoo.visit(&mut step);
    step.weights
}
