//! Recordings of other programs that tests replay: the repository's own, and those in the folder that
//! `BURNISH_RECORDINGS` names.
//!
//! The own ones must all be replayed. The folder may hold any part of what is recorded, and kinds that nothing here
//! computes: what a test has no replay for is counted and named ([`Replay`]), and so is a folder that has nothing.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The variable that names the folder.
pub const VARIABLE: &str = "BURNISH_RECORDINGS";

/// The folder of further recordings, if the variable is set.
pub fn root() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).map(PathBuf::from)
}

/// A file or folder of further recordings; says so where there is none.
pub fn given(kind: &str) -> Option<PathBuf> {
    within(root().as_deref(), kind)
}

fn within(root: Option<&Path>, kind: &str) -> Option<PathBuf> {
    let Some(root) = root else {
        println!("{VARIABLE} is not set: only the repository's own {kind} are replayed");
        return None;
    };
    let path = root.join(kind);
    if !path.exists() {
        println!("{}: no {kind} there, nothing to replay", root.display());
    }
    path.exists().then_some(path)
}

/// What became of recordings.
#[derive(Debug)]
pub struct Replay {
    what: String,
    replayed: usize,
    refused: Vec<String>,
}

impl Replay {
    /// Of `what`, a word for the report.
    pub fn of(what: impl Into<String>) -> Self {
        Self { what: what.into(), replayed: 0, refused: Vec::new() }
    }

    /// One more was replayed, and held.
    pub fn replayed(&mut self) {
        self.replayed += 1;
    }

    /// This one has no replay yet, and why.
    pub fn refused(&mut self, name: impl Display, why: impl Display) {
        self.refused.push(format!("{name}: {why}"));
    }

    /// How many were replayed and refused; prints the report.
    pub fn finish(self) -> (usize, usize) {
        println!("{}", self.report());
        (self.replayed, self.refused.len())
    }

    fn report(&self) -> String {
        if self.replayed == 0 && self.refused.is_empty() {
            return format!("{}: nothing was found to replay", self.what);
        }
        let mut report = format!("{}: {} replayed, {} refused", self.what, self.replayed, self.refused.len());
        for refused in &self.refused {
            report += &format!("\n  refused: {refused}");
        }
        report
    }
}

/// The cases of `golden/NAME`, each with the file that it is of: those of the crate's own `tests`, and those given that are
/// `known`; the reason why a case is not is printed with its number.
///
/// # Panics
/// If a file cannot be read, or one of the own cases is not known.
pub fn golden(
    tests: &Path,
    name: &str,
    known: impl Fn(&Value) -> Result<(), String>,
) -> Vec<(PathBuf, Value)> {
    chosen(tests, given(&format!("golden/{name}")), name, known)
}

fn chosen(
    tests: &Path,
    further: Option<PathBuf>,
    name: &str,
    known: impl Fn(&Value) -> Result<(), String>,
) -> Vec<(PathBuf, Value)> {
    let own = tests.join("golden").join(name);
    let mut all: Vec<_> = read(&own).into_iter().map(|case| (own.clone(), case)).collect();
    assert!(!all.is_empty(), "{} holds no case", own.display());
    for (i, (_, case)) in all.iter().enumerate() {
        known(case).unwrap_or_else(|why| panic!("{} case {i}: {why}", own.display()));
    }
    let Some(further) = further else { return all };
    let mut replay = Replay::of(further.display().to_string());
    for (i, case) in read(&further).into_iter().enumerate() {
        match known(&case) {
            Ok(()) => {
                replay.replayed();
                all.push((further.clone(), case));
            }
            Err(why) => replay.refused(format!("case {i}"), why),
        }
    }
    replay.finish();
    all
}

fn read(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// That a case has these keys and no others.
///
/// # Errors
/// With the first key too many, or too few.
pub fn has_keys(case: &Value, keys: &[&str]) -> Result<(), String> {
    let found = case.as_object().ok_or("a case is no object")?;
    if let Some(other) = found.keys().find(|key| !keys.contains(&key.as_str())) {
        return Err(format!("an unknown kind of case, with `{other}`"));
    }
    match keys.iter().find(|key| !found.contains_key(**key)) {
        Some(missing) => Err(format!("an unknown kind of case, without `{missing}`")),
        None => Ok(()),
    }
}

/// That the word under a key is one of these.
///
/// # Errors
/// With the word that is there.
pub fn one_of(case: &Value, key: &str, words: &[&str]) -> Result<(), String> {
    match case[key].as_str() {
        Some(word) if words.contains(&word) => Ok(()),
        _ => Err(format!("`{key}` is {}, expected one of {words:?}", case[key])),
    }
}

/// That the words under a key, one or a list, are of the type's.
///
/// # Errors
/// With what the type says of the word.
pub fn parses<T: std::str::FromStr<Err: Display>>(case: &Value, key: &str) -> Result<(), String> {
    let words = match &case[key] {
        Value::Array(words) => words.iter().collect(),
        word => vec![word],
    };
    for word in words {
        let word = word.as_str().ok_or_else(|| format!("`{key}` is {word}"))?;
        word.parse::<T>().map_err(|error| error.to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that is taken away again.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("recordings-{}-{name}", std::process::id()));
            std::fs::create_dir_all(path.join("golden")).expect("a temporary folder");
            Self(path)
        }

        fn with(self, name: &str, text: &str) -> Self {
            std::fs::write(self.0.join("golden").join(name), text).expect("a temporary file");
            self
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn known(case: &Value) -> Result<(), String> {
        has_keys(case, &["x"])?;
        parses::<u8>(case, "x")
    }

    #[test]
    fn a_folder_may_hold_any_part_and_any_kind() {
        let own = Folder::new("own").with("a.json", r#"[{"x": "1"}]"#);
        let given = Folder::new("given")
            .with("a.json", r#"[{"x": ["2", "3"]}, {"x": "1", "y": 0}, {"x": "many"}, {}]"#);
        assert_eq!(within(Some(&given.0), "golden/b.json"), None, "a file that is not there is no failure");
        assert_eq!(within(None, "golden/a.json"), None);
        let further = within(Some(&given.0), "golden/a.json");
        assert_eq!(chosen(&own.0, further, "a.json", known).len(), 2);
        assert_eq!(chosen(&own.0, None, "a.json", known).len(), 1);
    }

    #[test]
    #[should_panic(expected = "case 0: an unknown kind of case, with `y`")]
    fn an_own_case_must_be_known() {
        let own = Folder::new("strange").with("a.json", r#"[{"y": 1}]"#);
        chosen(&own.0, None, "a.json", known);
    }

    #[test]
    fn a_report_names_what_was_refused_and_that_nothing_was_found() {
        assert_eq!(Replay::of("runs").report(), "runs: nothing was found to replay");
        let mut replay = Replay::of("adapters");
        replay.replayed();
        replay.refused("a", "peft_type is ADALORA");
        assert_eq!(replay.report(), "adapters: 1 replayed, 1 refused\n  refused: a: peft_type is ADALORA");
        assert_eq!(replay.finish(), (1, 1));
    }
}
