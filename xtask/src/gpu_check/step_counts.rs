//! `StepCounts`: what a driver counted of a step, beside what the step's plan counts.

use anyhow::{Context, Result};
use serde_json::Value;

/// How far launches may be from the plan's, either way: small products, as those of a check are, come in parts that another launch
/// adds, and what lies where Burn's operations cannot look at it is copied first.
const LAUNCHES: f64 = 1.25;

/// Counts of a step, on all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StepCounts {
    launches: u64,
    to_host: u64,
    /// Of runs alone: a plan does not say it to the byte.
    pub(super) from_host: u64,
    collectives: u64,
}

impl StepCounts {
    /// Those of `burnish plan --json`.
    pub(super) fn planned(plan: &Value) -> Result<Self> {
        let ranks = plan["ranks"].as_u64().context("a plan without ranks")?;
        let mut all = Self::default();
        for line in plan["roofline"]["lines"].as_array().context("a plan without a roofline")? {
            let of = |name: &str| line[name].as_u64().unwrap_or(0);
            match line["bound"].as_str() {
                Some("link") => {}
                Some("host") => all.to_host += of("bytes_read"),
                _ => all.launches += of("launches"),
            }
        }
        for name in ["collectives", "collectives_where_layers_are_shared", "collectives_of_matrices"] {
            let rows = plan[name].as_array().context("a plan without collectives")?;
            all.collectives += rows.iter().filter_map(|row| row["calls"].as_u64()).sum::<u64>();
        }
        Ok(Self {
            launches: all.launches * ranks,
            to_host: all.to_host * ranks,
            from_host: 0,
            collectives: all.collectives * ranks,
        })
    }

    /// A step of a run, from the driver's reports of the whole and of another that is so many steps shorter.
    pub(super) fn traced(whole: &Value, shorter: &Value, steps: u64) -> Result<Self> {
        let of = |name: &str| {
            let count =
                |report: &Value| report[name].as_u64().with_context(|| format!("a report without {name}"));
            Ok::<_, anyhow::Error>(count(whole)?.saturating_sub(count(shorter)?) / steps)
        };
        Ok(Self {
            launches: of("launches")?,
            to_host: of("device_to_host_bytes")?,
            from_host: of("host_to_device_bytes")?,
            collectives: of("collectives")?,
        })
    }

    /// Cells of the table.
    pub(super) fn beside(&self, planned: Option<&Self>) -> String {
        let Self { launches, to_host, from_host, collectives } = self;
        match planned {
            Some(plan) => format!(
                "{launches} ({}) | {to_host} ({}) | {from_host} | {collectives} ({})",
                plan.launches, plan.to_host, plan.collectives
            ),
            None => format!("{launches} | {to_host} | {from_host} | {collectives}"),
        }
    }
}

/// The sums of what drivers of several processes counted.
pub(super) fn together(reports: &[Value]) -> Result<Value> {
    let first = reports.first().and_then(Value::as_object).context("no report")?;
    let sum = |name: &String| reports.iter().filter_map(|report| report[name].as_u64()).sum::<u64>();
    let counts = first.iter().filter(|(_, count)| count.is_u64());
    Ok(counts
        .map(|(name, _)| (name.clone(), Value::from(sum(name))))
        .collect::<serde_json::Map<_, _>>()
        .into())
}

/// What does not hold: launches within their factor; on one device the bytes that the host gets, to the byte; collectives, each.
pub(super) fn held(planned: &StepCounts, traced: &StepCounts, alone: bool) -> Option<String> {
    let factor = traced.launches as f64 / planned.launches.max(1) as f64;
    if !(1.0 / LAUNCHES..=LAUNCHES).contains(&factor) {
        return Some(format!("{} launches a step, planned {}", traced.launches, planned.launches));
    }
    if alone && traced.to_host != planned.to_host {
        return Some(format!("{} bytes to the host, planned {}", traced.to_host, planned.to_host));
    }
    (traced.collectives != planned.collectives)
        .then(|| format!("{} collectives, planned {}", traced.collectives, planned.collectives))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    #[test]
    fn a_step_is_what_a_run_has_more_than_a_shorter_one() {
        let line = |operation: &str, bound: &str, launches: u64, read: u64| json!({"operation": operation, "bound": bound, "launches": launches, "bytes_read": read});
        let plan = json!({
            "ranks": 2,
            "roofline": {"lines": [line("a", "products", 7, 9), line("b", "host", 0, 100), line("c", "link", 4, 8)]},
            "collectives": [{"calls": 3}, {"calls": 1}],
            "collectives_where_layers_are_shared": [],
            "collectives_of_matrices": [{"calls": 2}],
        });
        let planned = StepCounts::planned(&plan).unwrap();
        assert_eq!(planned, StepCounts { launches: 14, to_host: 200, from_host: 0, collectives: 12 });
        let report = |launches: u64, bytes: u64, collectives: u64| json!({"launches": launches, "device_to_host_bytes": bytes, "host_to_device_bytes": 2 * bytes, "collectives": collectives});
        let traced = StepCounts::traced(&report(140, 900, 40), &report(108, 500, 16), 2).unwrap();
        assert_eq!(traced, StepCounts { launches: 16, to_host: 200, from_host: 400, collectives: 12 });
        let halves = [report(100, 400, 20), report(40, 500, 20)];
        assert_eq!(together(&halves).unwrap(), report(140, 900, 40));
        assert!(together(&[]).is_err());
        assert_eq!(traced.beside(None), "16 | 200 | 400 | 12");
        assert_eq!(held(&planned, &traced, true), None);
        assert!(held(&planned, &StepCounts { launches: 30, ..traced }, true).is_some());
        assert!(held(&planned, &StepCounts { launches: 9, ..traced }, true).is_some());
        let more = StepCounts { to_host: 204, ..traced };
        assert!(held(&planned, &more, true).is_some() && held(&planned, &more, false).is_none());
        assert!(held(&planned, &StepCounts { collectives: 11, ..traced }, false).is_some());
    }
}
