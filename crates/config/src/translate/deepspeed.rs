//! Optimizers and schedules of DeepSpeed's files, in terms of `optim` and `lr_scheduler_type`.

use burnish_optim::{OptimizerName, ScheduleKind};

use super::sharding::is_auto;
use super::{Key, Translation};
use crate::foreign;
use crate::raw::Raw;
use crate::value::OptionValue;

/// A schedule of DeepSpeed's, with the arguments that Transformers fills in where they are `auto`, and what DeepSpeed takes
/// where they are not there.
type Schedule = (ScheduleKind, &'static [&'static str], &'static [(&'static str, f64)]);

/// DeepSpeed's schedules.
const SCHEDULES: &[Schedule] = &[
    (
        ScheduleKind::WarmupLr,
        &["warmup_min_lr", "warmup_max_lr", "warmup_num_steps"],
        &[("warmup_num_steps", 1000.0)],
    ),
    (
        ScheduleKind::WarmupDecayLr,
        &["warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps"],
        &[("warmup_num_steps", 1000.0), ("warmup_max_lr", 0.001)],
    ),
    (ScheduleKind::WarmupCosineLr, &["warmup_num_steps", "total_num_steps"], &[("warmup_num_steps", 1000.0)]),
    (ScheduleKind::OneCycle, &[], &[]),
    (ScheduleKind::LrRangeTest, &[], &[]),
];

/// Entries of an optimizer that only say how it is computed.
const SAME_RESULT: &[&str] =
    &["torch_adam", "fused", "foreach", "amsgrad", "set_grad_none", "fp32_optimizer_states"];

impl Translation<'_> {
    /// What a `scheduler` says. It wins over `lr_scheduler_type`, as with Transformers.
    pub(super) fn deepspeed_scheduler(&mut self, key: &Key, raw: &Raw, entries: &[(String, Raw)]) {
        let word =
            entries.iter().find(|(name, _)| name == "type").map(|(_, raw)| raw.plain()).unwrap_or_default();
        let known = SCHEDULES.iter().find(|(kind, ..)| kind.to_string() == word);
        let Some((kind, filled, absent)) = known else {
            let mend = "its type is WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle or LRRangeTest";
            return self.refuse(key, format!("scheduler: {raw}"), mend);
        };
        let parameters = parameters(entries);
        let has = |name: &str| parameters.iter().any(|(known, _)| known == name);
        if filled.contains(&"total_num_steps") && !has("total_num_steps") {
            let mend = "DeepSpeed asks for total_num_steps: say auto for the steps of the run";
            return self.refuse(key, format!("scheduler: {raw}"), mend);
        }
        let mut arguments: Vec<(String, Raw)> = Vec::new();
        for (name, raw) in parameters {
            let single = match raw {
                // A value for each group of parameters, of which there is one.
                Raw::List(items) if items.len() == 1 => &items[0],
                raw => raw,
            };
            if name != "last_batch_iteration" && !(is_auto(single) && filled.contains(&name.as_str())) {
                arguments.push((name.clone(), single.clone()));
            }
        }
        for (name, value) in *absent {
            if !has(name) {
                arguments.push(((*name).to_owned(), Raw::Float(*value)));
            }
        }
        let written = self.last("lr_scheduler_type").map(Raw::plain);
        if let Some(written) = written.filter(|written| *written != word) {
            self.note(
                "lr_scheduler_type",
                &format!("{written} gives way to {word} of the DeepSpeed file, as with Transformers"),
            );
        }
        self.say(key, "lr_scheduler_type", Raw::Text(kind.to_string()));
        self.say(key, "lr_scheduler_kwargs", Raw::Map(arguments));
    }

    /// What an `optimizer` says; `None` where it is one that is not here. It wins over `optim`, as with Transformers.
    pub(super) fn deepspeed_optimizer(&mut self, key: &Key, entries: &[(String, Raw)]) -> Option<()> {
        let word = entries.iter().find(|(name, _)| name == "type")?.1.plain().to_ascii_lowercase();
        let parameters = parameters(entries);
        let decoupled =
            !parameters.iter().any(|(name, raw)| name == "adam_w_mode" && *raw == Raw::Bool(false));
        let name = match word.as_str() {
            "adamw" | "auto" => OptimizerName::AdamW,
            // DeepSpeed's Adam is AdamW unless it is told not to be.
            "adam" if decoupled => OptimizerName::AdamW,
            "adam" => OptimizerName::Adam,
            "lion" => OptimizerName::Lion,
            "sgd" => OptimizerName::Sgd,
            "adagrad" => OptimizerName::Adagrad,
            _ => return None,
        };
        let adam = matches!(name, OptimizerName::AdamW | OptimizerName::Adam);
        let mut arguments = Vec::new();
        for (name_of, raw) in parameters.iter().filter(|(_, raw)| !is_auto(raw)) {
            match (name_of.as_str(), raw) {
                ("lr", raw) => self.say_launched(key, "learning_rate", raw.clone()),
                ("eps", raw) if adam => self.say_launched(key, "adam_epsilon", raw.clone()),
                ("weight_decay", raw) => self.say_launched(key, "weight_decay", raw.clone()),
                ("betas", Raw::List(betas)) if betas.len() == 2 && (adam || name == OptimizerName::Lion) => {
                    for (option, beta) in ["adam_beta1", "adam_beta2"].into_iter().zip(betas) {
                        if !is_auto(beta) {
                            self.say_launched(key, option, beta.clone());
                        }
                    }
                }
                ("adam_w_mode", Raw::Bool(_)) if adam => {}
                ("bias_correction", Raw::Bool(true)) if adam => {}
                ("amsgrad", raw) if !foreign::nothing(raw) => return None,
                ("momentum" | "dampening" | "nesterov", raw) if name == OptimizerName::Sgd => {
                    if !foreign::nothing(raw) {
                        arguments.push(format!("{name_of}={}", raw.plain()));
                    }
                }
                (other, _) if SAME_RESULT.contains(&other) => {}
                _ => return None,
            }
        }
        if name != OptimizerName::AdamW
            || self.last("optim").and_then(OptimizerName::read).is_some_and(|o| o != name)
        {
            if let Some(written) = self.last("optim").map(Raw::plain) {
                self.note(
                    "optim",
                    &format!(
                        "{written} gives way to the optimizer of the DeepSpeed file, as with Transformers"
                    ),
                );
            }
            self.say(key, "optim", Raw::Text(name.to_string()));
            self.say(key, "optim_args", Raw::Text(arguments.join(",")));
        }
        Some(())
    }
}

/// The entries of `params`.
fn parameters(entries: &[(String, Raw)]) -> &[(String, Raw)] {
    let found = entries.iter().find_map(|(name, raw)| match (name.as_str(), raw) {
        ("params", Raw::Map(parameters)) => Some(parameters.as_slice()),
        _ => None,
    });
    found.unwrap_or_default()
}
