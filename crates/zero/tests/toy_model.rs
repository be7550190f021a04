//! A model without arithmetic: gradients are small integers counted from (step, sample, parameter), so sums are exact in
//! any order and every run of the same samples must give the same bits.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use burn::tensor::{Device, FloatDType};
use burnish_comm::transport::{FaultPlan, Faulty};
use burnish_comm::{Group, Traffic, World, local};
use burnish_core::random::Stream;
use burnish_core::{Dtype, Parameter, Registry, Role};
use burnish_ops::{AnyTensor, Parameters};
use burnish_optim::{AdamWOptions, Applied, LearningRates, MuonOptions, Optimizer, OptimizerKind, Unscale};
use burnish_zero::{MatrixAllToAll, OrthoCost, Plan, Policy, ShardedParams, Stage, Unit, ZeroError};

pub(crate) const STAGES: [Stage; 4] = [Stage::Zero, Stage::One, Stage::Two, Stage::Three];

/// What a run does.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) registry: Registry,
    pub(crate) units: Vec<Unit>,
    pub(crate) policy: Policy,
    pub(crate) steps: usize,
    /// Samples of a step, over all ranks and micro-batches.
    pub(crate) samples: usize,
    pub(crate) micro_batches: usize,
    pub(crate) max_norm: Option<f64>,
    /// How often a micro-batch goes forward and backward, with some of its samples each.
    pub(crate) passes: usize,
    /// Whether ranks wait for some microseconds here and there, each differently.
    pub(crate) delays: bool,
    /// Parameters with one owner.
    pub(crate) owners: fn(&Parameter) -> bool,
    /// Muon for the matrices, which then have owners whatever `owners` says; AdamW for all without.
    pub(crate) muon: Option<MuonOptions>,
    /// Messages take a random time each, by this seed.
    pub(crate) late: Option<u64>,
    /// Whether a sample has a gradient for a parameter.
    pub(crate) uses: fn(sample: usize, parameter: &str) -> bool,
}

/// What is left of a run: weights as bits, optimizer state, and what was reported.
#[derive(Debug, PartialEq)]
pub(crate) struct Left {
    pub(crate) weights: BTreeMap<String, (Option<Dtype>, Vec<u8>)>,
    pub(crate) reports: Vec<Applied>,
    /// Whole slots: (parameter, slot) to values, put together from the ranks' rows.
    pub(crate) slots: BTreeMap<(String, &'static str), Vec<f32>>,
}

impl Run {
    pub(crate) fn new(registry: Registry, units: Vec<Unit>, stage: Stage) -> Self {
        let policy = Policy { persist_below: 0, ..Policy::new(stage) };
        Self {
            registry,
            units,
            policy,
            steps: 10,
            samples: 24,
            micro_batches: 1,
            max_norm: None,
            passes: 1,
            delays: false,
            owners: |_| false,
            muon: None,
            late: None,
            uses: |_, _| true,
        }
    }

    pub(crate) fn plan(&self, world: usize) -> Arc<Plan> {
        let policy = self.policy.clone();
        let whole = |p: &Parameter| match &self.muon {
            Some(options) => options.takes(p),
            None => (self.owners)(p),
        };
        let work = |_: usize, p: &Parameter| {
            whole(p).then(|| OrthoCost { flops: p.elements() as f64, elements: p.elements() })
        };
        Arc::new(Plan::with_owners(&self.registry, self.units.clone(), world, policy, work).unwrap())
    }

    /// The run on one rank.
    pub(crate) fn alone(&self) -> Left {
        let plan = self.plan(1);
        join(vec![self.on(&plan, &Group::alone()).unwrap()], &plan)
    }

    /// The run on `world` ranks; asserts that all end with the same weights.
    pub(crate) fn over(&self, world: usize) -> Left {
        join(self.ranks(world), &self.plan(world))
    }

    /// The same, rank by rank.
    pub(crate) fn ranks(&self, world: usize) -> Vec<Rank> {
        let plan = self.plan(world);
        let worlds = match self.late {
            None => World::local(world),
            Some(seed) => {
                let faults = FaultPlan::new(seed).delays(Duration::from_millis(2));
                let links = local::links(world).into_iter();
                links.map(|link| World::over(Box::new(Faulty::new(link, faults.clone())))).collect()
            }
        };
        let ranks: Vec<Rank> = local::run_worlds(worlds, |w: World| {
            plan.agree(&w.group())?;
            self.on(&plan, &w.group())
        })
        .into_iter()
        .map(|r| r.unwrap().unwrap())
        .collect();
        for rank in &ranks {
            assert_eq!(rank.weights, ranks[0].weights);
            assert_eq!(
                rank.reports.iter().map(|r| r.grad_norm).collect::<Vec<_>>(),
                ranks[0].reports.iter().map(|r| r.grad_norm).collect::<Vec<_>>()
            );
        }
        ranks
    }

    fn on(&self, plan: &Arc<Plan>, group: &Group) -> Result<Rank, ZeroError> {
        let device = Device::flex();
        let registry = &self.registry;
        let store = ShardedParams::new(plan.clone(), group, &device, |i, rows| {
            Ok::<_, Infallible>(initial(registry.at(i), rows, &device))
        })?;
        // At stage 0 every rank has every gradient, and all do the same.
        let alone = plan.policy().stage == Stage::Zero;
        let meeting = if alone { Group::alone() } else { group.clone() };
        let mut exchange =
            MatrixAllToAll::new(&meeting, &device, plan.matrices(group.rank()), self.policy.bucket_elements)?;
        let local = store.local_registry();
        let mut optimizer = match self.muon {
            None => Optimizer::adamw(&local, options()),
            Some(muon) => {
                Optimizer::muon(&local, registry, muon, options(), &|index| exchange.owns(index)).unwrap()
            }
        };
        let muon = optimizer.assignment().count(OptimizerKind::Muon).0;
        assert_eq!(muon > 0, self.muon.is_some());
        let mut reports = Vec::new();
        for step in 0..self.steps {
            group.clear_traffic();
            let mine = share(self.samples, group.rank(), group.size());
            for m in 0..self.micro_batches {
                let some = share(mine.len(), m, self.micro_batches);
                let samples = mine.start + some.start..mine.start + some.end;
                store.begin_micro_batch(m + 1 == self.micro_batches);
                self.micro_batch(&store, step, samples);
                store.end_micro_batch()?;
            }
            let gradients = store.gradients()?;
            match gradients.unscale(1.0, |s| store.sum_squares(s))? {
                Unscale::Finite(finite) => {
                    let rates = LearningRates { adam: 0.01, muon: 0.02 };
                    reports.push(optimizer.step(finite.clip(self.max_norm), &store, &mut exchange, rates)?);
                    store.all_gather_params()?;
                }
                Unscale::Skipped { .. } => panic!("integers are finite"),
            }
        }
        let traffic = group.traffic();
        let mut expected = plan.traffic(self.micro_batches);
        for (key, row) in exchange.traffic().rows() {
            expected.add(key.op, key.dtype, row.calls, row.elements);
        }
        let weights =
            (0..registry.len()).map(|i| (registry.at(i).name.clone(), bits(&store.read(i)))).collect();
        store.release();
        store.check()?;
        let slots =
            optimizer.slots().into_iter().map(|s| ((s.parameter, s.slot), s.tensor.to_f32())).collect();
        Ok(Rank { weights, reports, slots, traffic, expected })
    }

    /// Reads forward, and backward reads and gives gradients block by block.
    pub(crate) fn micro_batch(&self, store: &ShardedParams, step: usize, samples: Range<usize>) {
        for pass in 0..self.passes {
            let some = share(samples.len(), pass, self.passes);
            self.pass(store, step, samples.start + some.start..samples.start + some.end);
        }
    }

    fn pass(&self, store: &ShardedParams, step: usize, samples: Range<usize>) {
        let pause = |place: usize| {
            if self.delays {
                let word =
                    Stream::new(13, "delays").at(samples.start as u64).word((step * 100 + place) as u64);
                std::thread::sleep(Duration::from_micros(u64::from(word % 2000)));
            }
        };
        for (place, unit) in self.units.iter().enumerate() {
            pause(place);
            store.read_all(&unit.parameters);
        }
        for (place, unit) in self.units.iter().enumerate().rev() {
            pause(50 + place);
            if !unit.root {
                store.read_all(&unit.parameters);
            }
            for &index in &unit.parameters {
                let parameter = self.registry.at(index);
                let used = samples.clone().filter(|&s| (self.uses)(s, &parameter.name));
                let used: Vec<usize> = used.collect();
                if parameter.trainable && !used.is_empty() {
                    store.accumulate(index, gradient(parameter, step, &used));
                }
            }
        }
    }
}

/// What one rank has in the end.
pub(crate) struct Rank {
    pub(crate) weights: BTreeMap<String, (Option<Dtype>, Vec<u8>)>,
    pub(crate) reports: Vec<Applied>,
    pub(crate) slots: BTreeMap<(String, &'static str), Vec<f32>>,
    /// What it communicated in the last step, and what plan and exchange said of a step.
    pub(crate) traffic: Traffic,
    pub(crate) expected: Traffic,
}

/// Slots are this rank's rows; at stage 0 all have all rows.
fn join(ranks: Vec<Rank>, plan: &Plan) -> Left {
    let mut slots: BTreeMap<(String, &'static str), Vec<f32>> = BTreeMap::new();
    let by_rows = plan.policy().stage != Stage::Zero;
    for rank in ranks.iter().take(if by_rows { ranks.len() } else { 1 }) {
        for (key, values) in &rank.slots {
            // Rows are in rank order; who has none has no slots.
            slots.entry(key.clone()).or_default().extend(values);
        }
    }
    let mut reports = ranks[0].reports.clone();
    for (step, report) in reports.iter_mut().enumerate() {
        // How many parameters a rank updates depends on its rows.
        report.parameters = 0;
        if by_rows {
            report.orthogonalised = ranks.iter().map(|rank| rank.reports[step].orthogonalised).sum();
        }
    }
    Left { weights: ranks[0].weights.clone(), reports, slots }
}

pub(crate) fn options() -> AdamWOptions {
    AdamWOptions { weight_decay: 0.01, ..AdamWOptions::default() }
}

/// The `index`-th of `of` near-equal shares of `n` things.
pub(crate) fn share(n: usize, index: usize, of: usize) -> Range<usize> {
    n * index / of..n * (index + 1) / of
}

/// A parameter's first rows: a function of its name and global index.
pub(crate) fn initial(parameter: &Parameter, rows: Range<usize>, device: &Device) -> AnyTensor {
    let row: usize = parameter.shape[1..].iter().product();
    let stream = Stream::new(7, &parameter.name);
    let values = (rows.start * row..rows.end * row).map(|i| 0.3 * stream.normal(i as u64)).collect();
    let shape: Vec<usize> = std::iter::once(rows.len()).chain(parameter.shape[1..].iter().copied()).collect();
    let value = AnyTensor::from_elements::<f32>(values, &shape, device);
    value.cast(float(parameter.precision.store))
}

/// The sum of some samples' gradients: small integers.
pub(crate) fn gradient(parameter: &Parameter, step: usize, samples: &[usize]) -> AnyTensor {
    let elements = parameter.elements();
    let mut values = vec![0.0_f32; elements];
    for &sample in samples {
        let stream = Stream::new(11, &parameter.name).at((step * 1000 + sample) as u64);
        for (i, value) in values.iter_mut().enumerate() {
            *value += (stream.word(i as u64) % 5) as f32 - 2.0;
        }
    }
    AnyTensor::from_elements(values, &parameter.shape, &Device::flex())
}

pub(crate) fn float(dtype: Dtype) -> FloatDType {
    match dtype {
        Dtype::Bf16 => FloatDType::BF16,
        Dtype::F16 => FloatDType::F16,
        _ => FloatDType::F32,
    }
}

pub(crate) fn bits(tensor: &AnyTensor) -> (Option<Dtype>, Vec<u8>) {
    (tensor.dtype(), tensor.to_data().as_bytes().to_vec())
}

/// A trained f32 parameter.
pub(crate) fn trained(name: &str, shape: &[usize]) -> Parameter {
    Parameter { trainable: true, ..Parameter::new(name, shape, Role::Matrix, Dtype::F32) }
}

/// A registry of parameters, each group of which is a unit; the first and the last are roots.
pub(crate) fn registry(groups: Vec<Vec<Parameter>>) -> (Registry, Vec<Unit>) {
    let mut registry = Registry::new();
    let mut units = Vec::new();
    let last = groups.len() - 1;
    for (number, group) in groups.into_iter().enumerate() {
        let parameters = group.into_iter().map(|p| registry.add(p).unwrap()).collect();
        let root = number == 0 || number == last;
        units.push(Unit { name: format!("unit {number}"), parameters, root });
    }
    (registry, units)
}

/// Shapes that do not divide: fewer elements than ranks, fewer rows than ranks, none, one, primes, three dimensions.
pub(crate) fn odd() -> (Registry, Vec<Unit>) {
    registry(vec![
        vec![trained("embed", &[13, 5])],
        vec![
            trained("a.one", &[1]),
            trained("a.two", &[2]),
            trained("a.thin", &[1, 7]),
            trained("a.wide", &[3, 11]),
        ],
        vec![
            trained("b.none", &[0]),
            trained("b.no_rows", &[0, 4]),
            trained("b.prime", &[17, 3]),
            trained("b.cube", &[5, 2, 3]),
        ],
        vec![trained("c.empty_rows", &[4, 0]), trained("c.vector", &[19])],
        vec![trained("norm", &[5]), trained("head", &[13, 5])],
    ])
}
