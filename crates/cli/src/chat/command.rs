//! Commands of a conversation: lines that begin with a slash.

use std::path::PathBuf;

/// A command of the conversation.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Command {
    Help,
    Exit,
    /// Forget the conversation.
    Reset,
    /// Forget the last turn.
    Undo,
    /// Answer the last turn anew.
    Retry,
    /// What the model is told before the conversation; nothing.
    System(Option<String>),
    /// Talk with this adapter, or the base; say which there are.
    Adapter(Option<String>),
    /// Answers of the base beside the adapter's.
    Compare(bool),
    /// A setting of sampling with its value; all of them.
    Set(Option<(String, String)>),
    /// The prompt that the next answer would start from, as text and tokens.
    Prompt,
    /// Write the conversation as a row.
    Save(PathBuf),
    /// Go on with the conversation of a file.
    Load(PathBuf),
}

/// What `/help` says.
pub(super) const HELP: &str = "\
/system TEXT          what the model is told first; without TEXT nothing
/adapter NAME         talk with an adapter, or `base`; without NAME says which there are
/compare on|off       the base's answer beside the adapter's
/set NAME VALUE       temperature, top_k, top_p, min_p, repetition_penalty, max_new_tokens, seed, do_sample;
                      without NAME all of them. /temperature 0.7 does as well
/retry /undo /reset   answer again; forget the last turn; forget all
/prompt               what the model reads next, and its tokens
/save FILE /load FILE the conversation as a row of JSON lines, which trains as it is
/exit                 or Ctrl-D; Ctrl-C stops an answer";

/// Settings that a slash may name.
pub(super) const SETTINGS: [&str; 8] =
    ["temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens", "seed", "do_sample"];

impl Command {
    /// The command of a line; `None` for what is said to the model, also with two slashes before it.
    pub(super) fn parse(line: &str) -> Result<Option<Self>, String> {
        let Some(rest) = line.trim().strip_prefix('/').filter(|rest| !rest.starts_with('/')) else {
            return Ok(None);
        };
        let (word, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let argument = argument.trim();
        let some = (!argument.is_empty()).then(|| argument.to_owned());
        let needs = |what: &str| some.clone().ok_or_else(|| format!("/{word} needs {what}"));
        Ok(Some(match word {
            "help" | "?" => Self::Help,
            "exit" | "quit" | "bye" => Self::Exit,
            "reset" | "clear" => Self::Reset,
            "undo" => Self::Undo,
            "retry" => Self::Retry,
            "system" => Self::System(some),
            "adapter" => Self::Adapter(some),
            "compare" => Self::Compare(match argument {
                "" | "on" => true,
                "off" => false,
                other => return Err(format!("/compare is `on` or `off`, not `{other}`")),
            }),
            "set" => match argument.split_once(char::is_whitespace) {
                Some((name, value)) => Self::Set(Some((name.to_owned(), value.trim().to_owned()))),
                None if argument.is_empty() => Self::Set(None),
                None => return Err(format!("/set {argument} needs a value")),
            },
            "prompt" => Self::Prompt,
            "save" => Self::Save(needs("a file")?.into()),
            "load" => Self::Load(needs("a file")?.into()),
            setting if SETTINGS.contains(&setting) => {
                Self::Set(Some((setting.to_owned(), needs("a value")?)))
            }
            other => return Err(format!("there is no /{other}; /help says what there is")),
        }))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn lines_are_commands_or_said() {
        let parse = |line| Command::parse(line).unwrap();
        assert_eq!(parse("hello / there"), None);
        assert_eq!(parse("//etc is a folder"), None);
        assert_eq!(parse(" /exit "), Some(Command::Exit));
        assert_eq!(parse("/system  be brief "), Some(Command::System(Some("be brief".into()))));
        assert_eq!(parse("/system"), Some(Command::System(None)));
        let set = Some(Command::Set(Some(("top_p".into(), "0.9".into()))));
        assert_eq!((parse("/set top_p 0.9"), parse("/top_p 0.9")), (set.clone(), set));
        assert_eq!(parse("/save a b.jsonl"), Some(Command::Save("a b.jsonl".into())));
        for (line, said) in
            [("/sev x", "no /sev"), ("/save", "a file"), ("/compare x", "`x`"), ("/seed", "a value")]
        {
            assert!(Command::parse(line).unwrap_err().contains(said), "{line}");
        }
    }
}
