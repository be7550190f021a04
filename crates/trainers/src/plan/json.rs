//! A plan as JSON: `burnish plan --json`.

use burnish_comm::Traffic;
use burnish_zero::Memory;
use serde_json::{Value, json};

use crate::plan::roofline::Roofline;
use crate::plan::{RunPlan, Whole};

impl RunPlan {
    /// Bytes of each rank, collectives of a step, and where a GPU is named a step's time.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let Whole { elements, trained, ranks, tp_size, ep_size } = self.of;
        let memory = |at: usize| {
            let Memory { weights, gradients, optimizer, gathered, summing, updating } = self.memory[at];
            json!({
                "weights": weights,
                "reference": self.reference.get(at).map_or(0, |memory| memory.weights),
                "gradients": gradients,
                "optimizer": optimizer,
                "gathered": gathered,
                "summing": summing,
                "updating": updating,
                "activations": self.activations,
                "sampling": self.sampling,
                "tensors_at_most": self.tensors_at_most(at),
            })
        };
        json!({
            "parameters": elements,
            "trained": trained,
            "ranks": ranks,
            "tp_size": tp_size,
            "ep_size": ep_size,
            "zero_stage": self.plan.policy().stage.to_string(),
            "micro_batches": self.micro_batches,
            "tokens_of_micro_batch": self.tokens,
            "memory": (0..self.memory.len()).map(memory).collect::<Vec<_>>(),
            "on_device_at_most": self.overhead.map(|_| self.on_device_at_most()),
            "collectives": collectives(&self.traffic),
            "collectives_where_layers_are_shared": collectives(&self.shared),
            "collectives_of_matrices": collectives(&self.exchanged),
            "roofline": self.roofline.as_ref().map(Roofline::to_json),
        })
    }
}

fn collectives(traffic: &Traffic) -> Vec<Value> {
    let rows = traffic.rows();
    rows.map(|(key, row)| {
        json!({
            "op": key.op.to_string(),
            "dtype": key.dtype.to_string(),
            "calls": row.calls,
            "elements": row.elements,
        })
    })
    .collect()
}
