//! From options to a task that samples.

use burnish_config::groups::{ReferenceOptions, RolloutOptions};
use burnish_config::values::RolloutQuantization;
use burnish_config::{RunOptions, TrainerOptions};
use burnish_data::Order;
use burnish_models::Generation;
use burnish_ops::on_host;

use super::scoring::MissingEos;
use super::{Objective, Online, Rounds, Scoring, Server};
use crate::plan::RunPlan;
use crate::plan::step_passes::{RolloutPasses, StepPasses};
use crate::rows::sources::Sources;
use crate::run::Run;
use crate::scoring::reward_functions::WeightedReward;
use crate::setup::Setup;
use crate::setup::model_setup::ModelSetup;
use crate::setup::run_inputs::RunInputs;
use crate::{Ranks, TrainError};

/// What a trainer that samples is made of.
pub(crate) struct Parts<O> {
    pub(crate) objective: O,
    pub(crate) options: RolloutOptions,
    pub(crate) reference: ReferenceOptions,
    /// Reward functions and their weights.
    pub(crate) rewards: Vec<WeightedReward>,
}

impl<O: Objective> Parts<O> {
    /// Reads and checks everything that a run of `command` needs.
    pub(crate) fn open<C: TrainerOptions>(
        self,
        command: &C,
        step: StepPasses,
        mut inputs: RunInputs<'_>,
    ) -> Result<Run<Online<O>>, TrainError> {
        let Self { objective, options, reference, rewards } = self;
        let mut setup = Setup::open(command, &mut inputs)?;
        if options.rollout_quantization == RolloutQuantization::Int8 && !on_host(setup.devices.of(0).1) {
            return Err(TrainError::Int8Device);
        }
        let scoring = Scoring::new(rewards, MissingEos::of(&options))?;
        // The order of prompts is the generation batches'.
        setup.prepared.rules.shuffle = false;
        let rows = &setup.prepared;
        let (train, eval) = setup.datasets(
            |name, records| Ok(rows.preparer().prompts(name, records)?),
            |name, records| Ok(rows.preparer().prompts(name, records)?),
        )?;
        inputs.say(rows.findings(&train, eval.as_ref()));
        let rounds = rounds(&setup, inputs.ranks, &options, train.examples.len())?;
        let left = train.examples.len() % (rounds.batch() / options.num_generations);
        if left > 0 {
            (inputs.note)(&format!(
                "each epoch leaves out {left} of {} prompts, which do not fill a generation batch of {} completions",
                train.examples.len(),
                rounds.batch()
            ));
        }
        let limit = setup.folder.spec().max_positions;
        let longest = train.statistics.longest;
        if longest + options.max_completion_length > limit {
            (inputs.note)(&format!(
                "the longest prompt has {longest} tokens: with max_completion_length {} a text may exceed the \
                 model's {limit} positions",
                options.max_completion_length
            ));
        }
        let settings = settings(&setup, &options)?;
        let server = options.rollout_url.as_deref();
        let server = server.map(|url| {
            let vocab = setup.folder.spec().vocab;
            Server::new(url, options.rollout_model.as_deref(), options.rollout_timeout, vocab)
        });
        let mut ends = settings.stop.clone();
        ends.extend(rows.tokenizer.pad_id());
        let drops_out = !options.disable_dropout;
        let rows = train.examples.len();
        let task = Online {
            objective,
            train,
            eval,
            scoring,
            rounds,
            options,
            settings,
            server,
            ends,
            reference,
            drops_out,
        };
        let step = step.with_prompts(longest);
        setup.fit_adapter(&task, &mut inputs)?;
        Run::of_step(setup, rows, step, task)
    }
}

/// The plan of a run that samples; prompts are as long as the longest of the rows that options name, if they do.
pub(crate) fn plan(run: RunOptions, step: StepPasses) -> Result<RunPlan, TrainError> {
    let data = run.data.clone();
    let model = ModelSetup::open(run)?;
    if Sources::names(&data).is_empty() {
        return RunPlan::of_model(&model, &step);
    }
    let source = Sources::train(&data)?;
    let prompts = model.prepare_rows()?.preparer().prompts(&source.name(), source.records())?;
    RunPlan::of_model(&model, &step.with_prompts(prompts.statistics.longest))
}

/// Which completions make which step.
fn rounds(
    setup: &Setup,
    ranks: &Ranks,
    options: &RolloutOptions,
    prompts: usize,
) -> Result<Rounds, TrainError> {
    let training = &setup.options.training;
    let ranks = (ranks.size() / setup.options.ranks.tp_size).max(1);
    let (rows, step) =
        (training.per_device_train_batch_size, setup.shape(setup.rows_in_order(), ranks).global_batch());
    let batch = RolloutPasses::new(options, false).generation_batch(rows, ranks, step);
    let group = options.num_generations;
    if batch == 0 || !batch.is_multiple_of(group) {
        return Err(TrainError::GenerationBatch {
            batch,
            of: format!("num_generations {group}"),
            mend: "change generation_batch_size, num_generations, or the batch sizes that it is made of",
        });
    }
    // Rows of a micro-batch are of one generation batch.
    if !(batch.is_multiple_of(step) || batch.is_multiple_of(rows) && step.is_multiple_of(rows)) {
        return Err(TrainError::GenerationBatch {
            batch,
            of: format!(
                "the micro-batches of per_device_train_batch_size {rows}, nor of the {step} rows of a step"
            ),
            mend: "set generation_batch_size to a multiple of either",
        });
    }
    let shuffles = setup.options.data.shuffle_dataset && training.train_sampling_strategy == Order::Random;
    let strategy = if shuffles { Order::Random } else { Order::Sequential };
    let data = (prompts, strategy, training.row_seed());
    Ok(Rounds::new(data, batch, group, options.num_iterations)?)
}

/// How tokens are chosen.
fn settings(setup: &Setup, options: &RolloutOptions) -> Result<Generation, TrainError> {
    let mut settings = Generation {
        max_new_tokens: options.max_completion_length,
        stop: setup.stop_tokens()?,
        log_probs: true,
        max_sequences: options.generation_max_sequences,
        disable_compile: options.disable_compile,
        ..Generation::default()
    };
    let sampling = &mut settings.sampling;
    sampling.do_sample = true;
    sampling.temperature = options.temperature as f32;
    sampling.top_k = options.top_k;
    sampling.top_p = options.top_p as f32;
    sampling.min_p = options.min_p.map(|p| p as f32);
    sampling.repetition_penalty = options.repetition_penalty as f32;
    sampling.seed = setup.options.training.seed;
    Ok(settings)
}
