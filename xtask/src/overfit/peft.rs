//! PEFT as a reader of what was saved: a Python that loads it and says what it makes of some texts.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

/// How far apart log-probabilities may be, per token.
const CLOSE: f64 = 1e-4;

/// What a program says of a model: the summed log-probability of texts, and what it generates.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) sums: Vec<f64>,
    pub(crate) tokens: Vec<u64>,
}

impl Answer {
    /// The largest difference of log-probabilities per token, where texts have so many tokens.
    pub(crate) fn apart(&self, other: &Self, lengths: &[f64]) -> Result<f64> {
        ensure!(
            self.sums.len() == lengths.len() && other.sums.len() == lengths.len(),
            "{} and {} log-probabilities of {} texts",
            self.sums.len(),
            other.sums.len(),
            lengths.len()
        );
        let pairs = self.sums.iter().zip(&other.sums).zip(lengths);
        let worst = pairs.map(|((a, b), n)| ((a - b) / n).abs()).max_by(f64::total_cmp).unwrap_or(f64::NAN);
        ensure!(
            worst <= CLOSE,
            "log-probabilities differ by {worst:.1e} a token in PEFT, expected {CLOSE:.0e}"
        );
        ensure!(
            self.tokens == other.tokens,
            "PEFT generates other tokens: {:?}, expected {:?}",
            other.tokens,
            self.tokens
        );
        Ok(worst)
    }
}

/// A running Python with PEFT.
pub(crate) struct Peft {
    child: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    log: PathBuf,
    /// What it runs with.
    pub(crate) versions: String,
}

impl Peft {
    /// Starts `python`; what it says besides answers goes to a file in `scratch`.
    ///
    /// # Errors
    /// If it cannot be run or lacks a library.
    pub(crate) fn start(python: &Path, scratch: &Path) -> Result<Self> {
        let log = scratch.join("python.log");
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = Command::new(python);
        command.args(["-c", include_str!("check_adapters.py")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(file);
        let mut child = command.spawn().with_context(|| format!("cannot run {}", python.display()))?;
        let questions = child.stdin.take();
        let answers = child.stdout.take().context("python has no standard output")?;
        let mut peft =
            Self { child, questions, answers: BufReader::new(answers), log, versions: String::new() };
        let first = peft.next().with_context(|| {
            format!("{} cannot load adapters: it needs torch, transformers and peft", python.display())
        })?;
        first["versions"]
            .as_str()
            .context("python does not say its versions")?
            .clone_into(&mut peft.versions);
        Ok(peft)
    }

    /// What PEFT makes of a base with an adapter, or Transformers of a base alone.
    pub(crate) fn ask(
        &mut self,
        base: &Path,
        adapter: Option<&Path>,
        texts: &[&str],
        prompt: &str,
        max_new_tokens: usize,
    ) -> Result<Answer> {
        let question = json!({
            "base": base, "adapter": adapter, "texts": texts, "prompt": prompt, "max_new_tokens": max_new_tokens,
        });
        let questions = self.questions.as_mut().context("python has no standard input")?;
        writeln!(questions, "{question}").context("python has ended")?;
        let answer = self.next()?;
        let list =
            |key: &str| answer[key].as_array().with_context(|| format!("python's answer has no {key}"));
        Ok(Answer {
            sums: list("sums")?.iter().filter_map(Value::as_f64).collect(),
            tokens: list("tokens")?.iter().filter_map(Value::as_u64).collect(),
        })
    }

    fn next(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.answers.read_line(&mut line).context("cannot read from python")? == 0 {
            let said = std::fs::read_to_string(&self.log).unwrap_or_default();
            bail!("python has ended: {}", said.lines().last().unwrap_or("it said nothing"));
        }
        let answer: Value = serde_json::from_str(&line).context("python's answer is not JSON")?;
        match answer["error"].as_str() {
            Some(error) => bail!("{error}"),
            None => Ok(answer),
        }
    }
}

impl Drop for Peft {
    fn drop(&mut self) {
        // At the end of its input it ends.
        self.questions = None;
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_compared_per_token_and_token_for_token() {
        let ours = Answer { sums: vec![-17.0, -40.0], tokens: vec![5, 2] };
        let lengths = [32.0, 10.0];
        let near = Answer { sums: vec![-17.0, -40.0005], ..ours.clone() };
        let apart = ours.apart(&near, &lengths).expect("near");
        assert!((apart - 5e-5).abs() < 1e-9, "{apart}");
        let refused =
            |other: &Answer| ours.apart(other, &lengths).map(|_| ()).expect_err("apart").to_string();
        assert!(refused(&Answer { sums: vec![-17.0, -40.1], ..ours.clone() }).contains("1.0e-2 a token"));
        assert!(refused(&Answer { sums: vec![f64::NAN, -40.0], ..ours.clone() }).contains("NaN"));
        assert!(refused(&Answer { tokens: vec![5, 3], ..ours.clone() }).contains("other tokens"));
        assert!(refused(&Answer { sums: vec![-17.0], ..ours.clone() }).contains("2 texts"));
    }

    #[test]
    fn a_python_without_the_libraries_is_named() {
        let scratch = std::env::temp_dir().join(format!("burnish-peft-{}", std::process::id()));
        std::fs::create_dir_all(&scratch).expect("a folder");
        let error = Peft::start(Path::new("/no/such/python"), &scratch).err().expect("no python");
        assert!(format!("{error:#}").contains("cannot run /no/such/python"), "{error:#}");
        // `cat` ends at once for lack of a file of that name.
        let error = Peft::start(Path::new("cat"), &scratch).err().expect("not a python");
        assert!(format!("{error:#}").contains("it needs torch, transformers and peft"), "{error:#}");
        let _ = std::fs::remove_dir_all(&scratch);
    }
}
