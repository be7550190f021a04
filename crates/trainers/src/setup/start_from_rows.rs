//! The fit of an adapter to its rows, before ranks begin: the start that is made of them (EVA, CorDA, LoRA-GA), drawn once, by
//! every process from the same rows (a run that goes on has it from its checkpoint), and the tokens that it waits for (aLoRA).

use std::ops::Range;
use std::sync::Arc;

use burnish_checkpoint::{Checkpoint, resume};
use burnish_config::values::Resume;
use burnish_data::{ContentKey, Finding, InvocationCheck};
use burnish_models::{Decoder, ForwardContext, ModelPlan, RowStart, RowsToStart, TokenRow, Tuning};
use burnish_ops::AnyTensor;
use burnish_peft::{AdapterFolder, Init};

use crate::TrainError;
use crate::setup::Setup;
use crate::setup::run_inputs::RunInputs;

/// A trainer's rows as a start reads them.
pub(crate) trait StartRows {
    /// Rows to train on.
    fn rows(&self) -> usize;

    /// The texts of a row, each as it runs by itself.
    fn texts(&self, row: usize) -> Vec<TokenRow>;

    /// The loss of a first step, `[1]` on the tape; `None` where nothing is learned.
    fn first_loss(&self, step: FirstStep<'_>) -> Result<Option<AnyTensor>, TrainError>;
}

/// A step of a model that is its own reference, over some rows.
pub(crate) struct FirstStep<'a> {
    pub(crate) decoder: &'a Decoder,
    pub(crate) pass: &'a ForwardContext,
    pub(crate) rows: Range<usize>,
}

impl Setup {
    /// What a fresh or given adapter takes from rows: a start, and the tokens that it waits for.
    ///
    /// # Errors
    /// If it cannot start.
    pub(crate) fn fit_adapter(
        &mut self,
        rows: &impl StartRows,
        inputs: &mut RunInputs<'_>,
    ) -> Result<(), TrainError> {
        inputs.say(self.not_invoked(rows));
        self.start_from_rows(rows, inputs)
    }

    /// Whether rows lack the tokens that the adapter waits for.
    fn not_invoked(&self, rows: &impl StartRows) -> Option<Finding> {
        let own = self.model.adapter.as_ref().map(|adapter| &adapter.config);
        let tokens = own.or(self.model.config.as_ref())?.invocation()?;
        let mut check = InvocationCheck::new(tokens);
        for row in 0..rows.rows() {
            let texts = rows.texts(row);
            check.see(texts.iter().flat_map(TokenRow::labelled));
        }
        check.finding()
    }

    /// Draws the start of a fresh adapter from the first of `rows`, or takes it from the checkpoint that the run goes on from.
    ///
    /// # Errors
    /// If rows say too little, or the checkpoint has another adapter.
    fn start_from_rows(
        &mut self,
        rows: &impl StartRows,
        inputs: &mut RunInputs<'_>,
    ) -> Result<(), TrainError> {
        let training = &self.model.options.training;
        let fresh = self.model.config.as_ref().filter(|_| self.model.adapter.is_none());
        let init = fresh.and_then(|config| config.init_lora_weights.method());
        let (Some(config), Some(init)) = (fresh, init.filter(|init| init.reads_rows())) else {
            return Ok(());
        };
        let checkpoint = match &training.resume_from_checkpoint {
            Resume::No => None,
            Resume::Newest => Some(resume(&training.output_dir)?.0),
            Resume::From(path) => Some(Checkpoint::open(path)?),
        };
        if let Some(checkpoint) = checkpoint {
            self.start_of(&checkpoint, init)?;
            return Ok(());
        }
        let lora = &self.model.options.lora;
        let (count, size) =
            (rows.rows().min(lora.init_lora_rows), training.per_device_train_batch_size.max(1));
        let of_batch = |first: usize| first..(first + size).min(count);
        let texts = |first: usize| of_batch(first).flat_map(|row| rows.texts(row)).collect();
        let batches: Vec<Vec<TokenRow>> = (0..count).step_by(size).map(texts).collect();
        let given = RowsToStart {
            batches: &batches,
            trained: self.model.trained,
            compute: self.model.options.model.compute(),
            widened: self.model.widened,
            quantization: self.model.options.quantization.quantization(),
            seed: training.seed,
            writes: inputs.ranks.lead(),
        };
        let (_, device) = self.devices.of(0);
        let loss = |decoder: &Decoder, pass: &ForwardContext, batch: usize| {
            rows.first_loss(FirstStep { decoder, pass, rows: of_batch(batch * size) })
        };
        let Some(start) = RowStart::of(&self.model.folder, config, &given, &loss, device)? else {
            return Ok(());
        };
        let mut note = match &start.read {
            Some(file) => format!("{init}: the adapter starts from {}", file.display()),
            None => format!("{init}: the adapter starts from {count} rows"),
        };
        if init == Init::Eva {
            let others = start.config.rank_pattern.len();
            note += &format!(
                ", with other ranks than {} in {others} of {} modules",
                config.r,
                start.factors.len()
            );
        }
        self.model.config = Some(start.config);
        self.model.start = start.factors;
        (inputs.note)(&note);
        Ok(())
    }

    /// Takes the start of a checkpoint's run: its ranks, and where the base was changed what that was changed by.
    fn start_of(&mut self, checkpoint: &Checkpoint, init: Init) -> Result<(), TrainError> {
        let adapter = AdapterFolder::open(checkpoint.path())?;
        let Some(config) = &mut self.model.config else { return Ok(()) };
        if init == Init::Eva {
            config.target_modules.clone_from(&adapter.config.target_modules);
            config.rank_pattern.clone_from(&adapter.config.rank_pattern);
            config.alpha_pattern.clone_from(&adapter.config.alpha_pattern);
            return Ok(());
        }
        let config = config.clone();
        let model = &self.model;
        let tuning = Tuning::NewAdapter(&config);
        let planned = ModelPlan::new(&model.folder, &tuning, model.trained, model.options.training.seed)?;
        if let Some(plan) = planned.plan() {
            let exported = adapter.load(&plan.exported())?;
            let initial = plan.initial_part(&exported)?;
            self.model.start = initial.into_iter().map(|(module, made)| (module, Arc::new(made))).collect();
        }
        Ok(())
    }

    /// What tells one start from another.
    pub(crate) fn start_digest(&self) -> String {
        let mut key = ContentKey::new("start of an adapter");
        for (module, made) in &self.model.start {
            key.add(module);
            for values in [&made.a, &made.b] {
                let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
                key.add(&bytes);
            }
        }
        key.hex()
    }
}
