//! `trainer_state.json`, in Transformers' schema.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The loop's state. Transformers' `TrainerState.load_from_json` accepts the file: what burnish adds lies in
/// `stateful_callbacks`, the one field that is open.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainerState {
    /// The step with the best metric.
    pub best_global_step: Option<u64>,
    /// The best metric.
    pub best_metric: Option<f64>,
    /// The checkpoint of the best metric.
    pub best_model_checkpoint: Option<String>,
    /// Epochs done, with fraction.
    pub epoch: f64,
    /// Evaluate every this many steps.
    pub eval_steps: Value,
    /// Optimizer steps done.
    pub global_step: u64,
    /// Always `false`.
    pub is_hyper_param_search: bool,
    /// Always `true`: rank 0 writes.
    pub is_local_process_zero: bool,
    /// Always `true`: rank 0 writes.
    pub is_world_process_zero: bool,
    /// One object per logging step and evaluation.
    pub log_history: Vec<Map<String, Value>>,
    /// Log every this many steps.
    pub logging_steps: Value,
    /// Optimizer steps of the whole run.
    pub max_steps: u64,
    /// Input tokens so far.
    pub num_input_tokens_seen: u64,
    /// Epochs of the whole run.
    pub num_train_epochs: u64,
    /// Save every this many steps.
    pub save_steps: Value,
    /// Open: [`burnish`](Self::burnish) lies here.
    pub stateful_callbacks: Map<String, Value>,
    /// Floating point operations so far.
    pub total_flos: f64,
    /// Rows per device and micro-batch.
    pub train_batch_size: Option<u64>,
    /// Always null.
    pub trial_name: Option<String>,
    /// Always null.
    pub trial_params: Option<Value>,
}

impl Default for TrainerState {
    fn default() -> Self {
        Self {
            best_global_step: None,
            best_metric: None,
            best_model_checkpoint: None,
            epoch: 0.0,
            eval_steps: 500.into(),
            global_step: 0,
            is_hyper_param_search: false,
            is_local_process_zero: true,
            is_world_process_zero: true,
            log_history: Vec::new(),
            logging_steps: 500.into(),
            max_steps: 0,
            num_input_tokens_seen: 0,
            num_train_epochs: 0,
            save_steps: 500.into(),
            stateful_callbacks: Map::new(),
            total_flos: 0.0,
            train_batch_size: None,
            trial_name: None,
            trial_params: None,
        }
    }
}

const OURS: &str = "burnish";

impl TrainerState {
    /// What burnish keeps beside Transformers' fields: data cursor, counters, scheduler; null if never set.
    #[must_use]
    pub fn burnish(&self) -> &Value {
        self.stateful_callbacks.get(OURS).unwrap_or(&Value::Null)
    }

    /// Sets [`burnish`](Self::burnish).
    pub fn set_burnish(&mut self, value: Value) {
        self.stateful_callbacks.insert(OURS.into(), value);
    }
}
