//! The table of results: a line per case and a summary.

use anyhow::Result;

use super::matrix::{Case, Experts};
use super::trial::Proof;

/// How a case went.
#[derive(Debug)]
pub(crate) enum End {
    /// Tried, in so many seconds.
    Tried(Result<Proof>, f64),
    /// Not tried, and why.
    LeftOut(String),
}

/// Cases and how they went, in the order they came.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<(Case, End)>,
}

impl Table {
    pub(crate) const HEAD: &str = "family    method  tp accum. dropout  result";

    /// Takes a case in and gives its line.
    pub(crate) fn push(&mut self, case: Case, end: End) -> String {
        let line = line(&case, &end);
        self.rows.push((case, end));
        line
    }

    pub(crate) fn passed(&self) -> usize {
        self.rows.iter().filter(|(_, end)| matches!(end, End::Tried(Ok(_), _))).count()
    }

    pub(crate) fn failed(&self) -> usize {
        self.rows.iter().filter(|(_, end)| matches!(end, End::Tried(Err(_), _))).count()
    }

    fn left_out(&self) -> usize {
        self.rows.len() - self.passed() - self.failed()
    }

    /// Every line, and the count.
    pub(crate) fn text(&self, name: &str, seconds: f64) -> String {
        let mut text = format!("{}\n", Self::HEAD);
        for (case, end) in &self.rows {
            text.push_str(&line(case, end));
            text.push('\n');
        }
        text.push_str(&format!("== {name}: {} passed, {} failed", self.passed(), self.failed()));
        if self.left_out() > 0 {
            text.push_str(&format!(", {} left out", self.left_out()));
        }
        text.push_str(&format!(", in {seconds:.0} s"));
        text
    }
}

fn line(case: &Case, end: &End) -> String {
    let Case { family, method, tp, experts, accumulation, dropout } = case;
    let tp = match experts {
        Experts::Parts => tp.to_string(),
        Experts::Whole => format!("e{tp}"),
        Experts::Exchanged => format!("ep{tp}"),
    };
    let said = match end {
        End::Tried(Ok(proof), seconds) => format!("{}  {seconds:.1} s", said(proof)),
        End::Tried(Err(error), seconds) => format!("FAILED: {error:#}  {seconds:.1} s"),
        End::LeftOut(why) => format!("left out: {why}"),
    };
    format!("{family:9} {:6} {tp:>3} {accumulation:6} {dropout:7}  {said}", method.name())
}

fn said(proof: &Proof) -> String {
    let Proof { fall, apart, resumed, peft } = proof;
    let apart = apart.map_or_else(|| "one rank".to_owned(), |apart| format!("tp=1 to {apart:.0e}"));
    let resumed = match resumed.as_slice() {
        [] => "no other tp to go on at".to_owned(),
        some => format!("goes on at tp {}", some.iter().map(usize::to_string).collect::<Vec<_>>().join(" ")),
    };
    let peft = peft.map_or_else(|| "PEFT not checked".to_owned(), |apart| format!("PEFT to {apart:.0e}"));
    format!(
        "loss -{:.1} %, norm -{:.1} %, {apart}, says it, {resumed}, {peft}",
        100.0 * fall.loss,
        100.0 * fall.norm
    )
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;
    use crate::overfit::curve::Fall;
    use crate::overfit::matrix::{Experts, Method};

    #[test]
    fn lines_say_what_held_what_failed_and_what_was_left_out() {
        let case = |tp| Case {
            family: "qwen2",
            method: Method::Dora,
            tp,
            experts: Experts::Parts,
            accumulation: 4,
            dropout: 0.1,
        };
        let fall = Fall { loss: 0.915, norm: 0.96 };
        let mut table = Table::default();
        let one = Proof { fall, apart: None, resumed: vec![2, 3], peft: None };
        let line = table.push(case(1), End::Tried(Ok(one.clone()), 1.5));
        assert_eq!(
            line,
            "qwen2     dora     1      4     0.1  loss -91.5 %, norm -96.0 %, one rank, says it, goes on at tp 2 3, \
             PEFT not checked  1.5 s"
        );
        let two = Proof { apart: Some(3e-7), resumed: Vec::new(), peft: Some(2e-6), ..one };
        let line = table.push(case(2), End::Tried(Ok(two), 1.5));
        assert!(line.contains("tp=1 to 3e-7, says it, no other tp to go on at, PEFT to 2e-6"), "{line}");
        let failure = anyhow!("cannot read a file").context("the base does not train");
        let line = table.push(case(2), End::Tried(Err(failure), 0.1));
        assert!(line.contains("FAILED: the base does not train: cannot read a file"), "{line}");
        table.push(case(4), End::LeftOut("4 ranks, 2 GPUs".to_owned()));
        assert_eq!((table.passed(), table.failed(), table.left_out()), (2, 1, 1));
        let text = table.text("multi-gpu", 12.0);
        assert!(text.contains("left out: 4 ranks, 2 GPUs"), "{text}");
        assert!(text.ends_with("== multi-gpu: 2 passed, 1 failed, 1 left out, in 12 s"), "{text}");
        assert_eq!(text.lines().count(), 6);
    }
}
