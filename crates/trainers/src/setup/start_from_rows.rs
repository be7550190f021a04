//! The start of an adapter that is made of rows of the data (EVA, CorDA, LoRA-GA), before ranks begin: drawn once, by every
//! process from the same rows; a run that goes on has it from its checkpoint.

use std::sync::Arc;

use burnish_checkpoint::{Checkpoint, resume};
use burnish_config::values::Resume;
use burnish_data::{ContentKey, Example};
use burnish_models::{ModelPlan, RowStart, RowsToStart, TokenRow, Tuning};
use burnish_peft::{AdapterFolder, Init};

use crate::TrainError;
use crate::setup::Setup;

impl Setup {
    /// Draws the start of a fresh adapter from the first of `rows`, or takes it from the checkpoint that the run goes on from;
    /// what the user should know of it.
    ///
    /// # Errors
    /// If rows say too little, or the checkpoint has another adapter.
    pub(crate) fn start_from_rows(&mut self, rows: &[Example]) -> Result<Option<String>, TrainError> {
        let training = &self.model.options.training;
        let fresh = self.model.config.as_ref().filter(|_| self.model.adapter.is_none());
        let init = fresh.and_then(|config| config.init_lora_weights.method());
        let (Some(config), Some(init)) = (fresh, init.filter(|init| init.reads_rows())) else {
            return Ok(None);
        };
        let checkpoint = match &training.resume_from_checkpoint {
            Resume::No => None,
            Resume::Newest => Some(resume(&training.output_dir)?.0),
            Resume::From(path) => Some(Checkpoint::open(path)?),
        };
        if let Some(checkpoint) = checkpoint {
            self.start_of(&checkpoint, init)?;
            return Ok(None);
        }
        let lora = &self.model.options.lora;
        let rows: Vec<TokenRow> = rows.iter().take(lora.init_lora_rows).map(of_example).collect();
        let given = RowsToStart {
            rows: &rows,
            batch: training.per_device_train_batch_size,
            trained: self.model.trained,
            compute: self.model.options.model.compute(),
            quantization: self.model.options.quantization.quantization(),
            seed: training.seed,
        };
        let (_, device) = self.devices.of(0);
        let Some(start) = RowStart::of(&self.model.folder, config, &given, device)? else { return Ok(None) };
        let mut note = format!("{init}: the adapter starts from {} rows", rows.len());
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
        Ok(Some(note))
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

fn of_example(row: &Example) -> TokenRow {
    let whole = [row.input_ids.len()];
    let lengths = if row.seq_lengths.is_empty() { &whole[..] } else { &row.seq_lengths };
    let mut rest = row.input_ids.as_slice();
    let text = |&length: &usize| {
        let (text, after) = rest.split_at(length.min(rest.len()));
        rest = after;
        text.to_vec()
    };
    TokenRow { texts: lengths.iter().map(text).collect(), labels: row.labels.clone() }
}
