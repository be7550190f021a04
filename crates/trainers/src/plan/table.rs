//! A plan as text: the tables of `burnish plan`.

use std::fmt;

use burnish_comm::Traffic;
use burnish_report::{bytes, count};
use burnish_tp::AdapterSums;
use burnish_zero::Memory;

use crate::plan::{RunPlan, Whole};

impl RunPlan {
    /// Bytes of tensors that rank `at` of those that take different rows holds at once, at most.
    pub(crate) fn tensors_at_most(&self, at: usize) -> u64 {
        let (own, other) = (self.memory[at], self.reference.get(at).copied().unwrap_or_default());
        // A reference has gathered nothing any more when gradients begin.
        let scores = own.rest() + own.gathered + other.gathered;
        other.weights + (own.peak() + self.activations).max(scores).max(own.rest() + self.sampling)
    }

    /// Bytes that any rank's device holds at once, at most.
    #[must_use]
    pub fn on_device_at_most(&self) -> u64 {
        let held = (0..self.memory.len()).map(|at| self.tensors_at_most(at)).max().unwrap_or(0);
        held + self.overhead.map_or(0, |overhead| overhead.beside(held))
    }

    /// What each rank holds, as a table.
    #[must_use]
    pub fn held(&self) -> String {
        let of = |pick: fn(&Memory) -> u64| {
            let all = || self.memory.iter().map(pick);
            (all().max().unwrap_or(0), all().min().unwrap_or(0))
        };
        let mut table = String::from("per rank                            most      least\n");
        let mut line = |name: &str, (most, least): (u64, u64)| {
            table.push_str(&format!("{name:30} {:>10} {:>10}\n", bytes(most), bytes(least)));
        };
        line("weights", of(|m| m.weights));
        if !self.reference.is_empty() {
            let all = || self.reference.iter().map(|m| m.weights);
            line("reference", (all().max().unwrap_or(0), all().min().unwrap_or(0)));
        }
        line("gradients", of(|m| m.gradients));
        line("optimizer", of(|m| m.optimizer));
        line("gathered weights, at most", of(|m| m.gathered));
        line("gradients being summed, at most", of(|m| m.summing));
        if self.memory.iter().any(|m| m.updating > 0) {
            line("whole matrices of Muon, at most", of(|m| m.updating));
        }
        line("activations, estimated", (self.activations, self.activations));
        if self.sampling > 0 {
            line("sampling, at most", (self.sampling, self.sampling));
        }
        let sums = || (0..self.memory.len()).map(|at| self.tensors_at_most(at));
        let (most, least) = (sums().max().unwrap_or(0), sums().min().unwrap_or(0));
        let Some(overhead) = self.overhead else {
            line("all together, at most", (most, least));
            return table;
        };
        line("CUDA context and kernels, about", (overhead.context, overhead.context));
        line("a block of logits or of attention", (overhead.workspace, overhead.workspace));
        let pages = |held: u64| overhead.pages(held);
        line("pages kept by the allocator", (pages(most), pages(least)));
        let all = |held: u64| held + overhead.beside(held);
        line("all together, at most", (all(most), all(least)));
        table
    }
}

/// The table of `burnish plan`.
impl fmt::Display for RunPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Whole { elements: all, trained, ranks, tp_size, ep_size } = self.of;
        writeln!(
            f,
            "{} parameters, {} train; {ranks} rank{}{}, ZeRO stage {}; {} micro-batch{} of {} tokens a step",
            count(all as u64),
            count(trained as u64),
            if ranks == 1 { "" } else { "s" },
            match (tp_size, ep_size) {
                (1, 1) => String::new(),
                (1, _) => format!(" ({ep_size} have all experts)"),
                (_, 1) => format!(" ({tp_size} share each layer)"),
                _ => format!(" ({tp_size} share each layer, {} have all experts)", tp_size * ep_size),
            },
            self.plan.policy().stage,
            self.micro_batches,
            if self.micro_batches == 1 { "" } else { "es" },
            self.tokens,
        )?;
        if let Some((prompt, completion)) = self.rollout {
            writeln!(
                f,
                "prompts of {prompt} tokens, completions of {completion}: a step samples a generation batch"
            )?;
        }
        write!(f, "\n{}", self.precision)?;
        write!(f, "\n{}", self.held())?;
        self.sent(f)?;
        self.roofline.as_ref().map_or(Ok(()), |roofline| write!(f, "\n{roofline}"))
    }
}

impl RunPlan {
    /// What ranks send each other.
    fn sent(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Whole { trained, tp_size, ep_size, .. } = self.of;
        if self.of.ranks == 1 {
            return writeln!(f, "\nOne rank sends nothing.");
        }
        let table = |f: &mut fmt::Formatter<'_>, title: &str, traffic: &Traffic| {
            writeln!(f, "\n{title:36} calls     elements")?;
            traffic.rows().try_for_each(|(key, row)| {
                let name = format!("{} of {}", key.op, key.dtype);
                writeln!(f, "{name:30} {:>11} {:>12}", row.calls, row.elements)
            })
        };
        if ep_size > 1 {
            table(f, "per step, where experts are shared", &self.shared)?;
            let elements = self.shared_elements();
            writeln!(f, "tokens and gradients: {elements} elements, where experts are chosen evenly")?;
        } else if tp_size > 1 {
            table(f, "per step, where layers are shared", &self.shared)?;
            let elements = self.shared_elements();
            writeln!(f, "activations and gradients: {elements} elements in full micro-batches")?;
            if let Some(AdapterSums { colwise, rowwise }) = self.adapters {
                writeln!(
                    f,
                    "adapters: {colwise} with column-parallel layers, {rowwise} with row-parallel ones"
                )?;
            }
        }
        if self.exchanged.rows().next().is_some() {
            table(f, "per step, Muon's matrices", &self.exchanged)?;
            writeln!(f, "updates: {} elements sent by the first rank", self.exchanged_elements())?;
        }
        if self.allotment.rows().next().is_some() {
            table(f, "per step that allots ranks, besides", &self.allotment)?;
            writeln!(f, "importance: {} elements of singular values", self.allotment_elements())?;
        }
        if self.plan.world() == 1 {
            return Ok(());
        }
        table(f, "per step", &self.traffic)?;
        let shares = self.elements() as f64 / (trained as f64).max(1.0);
        writeln!(
            f,
            "weights and gradients: {} elements, {shares:.2} times the trained parameters",
            self.elements()
        )
    }
}
