//! Options that are one of a few words (Python's `choices`): the enum, its words, and the error for any other word.
//!
//! [`choices!`](crate::choices) declares the enum where its meaning lives. The words are those of TRL, Transformers and
//! PEFT; whoever reads a command line or a file takes them from there ([`Choice`]).

/// An enum whose variants are written as words.
pub trait Choice: Copy + PartialEq + 'static {
    /// The option that takes these words.
    const OPTION: &'static str;
    /// The words, in the order of `--help`.
    const WORDS: &'static [&'static str];

    /// The variant that this word means; other spellings count.
    fn from_word(word: &str) -> Option<Self>;

    /// The word for the variant.
    fn word(self) -> &'static str;
}

/// A word that is none of an option's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {option} `{got}`; expected {}", alternatives(words))]
pub struct UnknownWord {
    /// The option.
    pub option: &'static str,
    /// The word.
    pub got: String,
    /// The option's words.
    pub words: &'static [&'static str],
}

/// Words as a sentence has them: `a, b or c`.
#[must_use]
pub fn alternatives(words: &[&str]) -> String {
    match words.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => words.concat(),
    }
}

/// Declares an enum whose variants are words: `name()`, `ALL`, `Display`, `FromStr` and [`Choice`](crate::Choice).
///
/// After the enum's name come the option that takes the words and the error of `FromStr`, which must be `From` an
/// [`UnknownWord`](crate::UnknownWord). Other spellings of a word follow it after `|`; a spelling that is to be listed
/// beside the words is declared by `listed`.
///
/// ```
/// burnish_core::choices! {
///     /// What gradients are summed over.
///     #[derive(Default)]
///     pub enum Mean: "mean", burnish_core::UnknownWord {
///         /// Tokens.
///         #[default]
///         Tokens = "tokens" | "token",
///         /// Rows.
///         Rows = "rows",
///     }
/// }
///
/// assert_eq!("token".parse(), Ok(Mean::Tokens));
/// assert_eq!(Mean::ALL.map(Mean::name), ["tokens", "rows"]);
/// assert_eq!("row".parse::<Mean>().unwrap_err().to_string(), "unknown mean `row`; expected tokens or rows");
/// ```
#[macro_export]
macro_rules! choices {
    ($(
        $(#[$meta:meta])*
        $vis:vis enum $name:ident: $option:literal, $error:ty {
            $($(#[$variant_meta:meta])* $variant:ident = $word:literal $(| $alias:literal)* $(listed $listed:literal)*,)+
        }
    )+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $vis enum $name {
            $($(#[$variant_meta])* $variant,)+
        }

        impl $name {
            /// All of them, in the order of `--help`.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// The word of the option.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl $crate::Choice for $name {
            const OPTION: &'static str = $option;
            const WORDS: &'static [&'static str] = &[$($word,)+ $($($listed,)*)+];

            fn from_word(word: &str) -> Option<Self> {
                match word { $($word $(| $alias)* $(| $listed)* => Some(Self::$variant),)+ _ => None }
            }

            fn word(self) -> &'static str {
                self.name()
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $error;

            fn from_str(word: &str) -> Result<Self, $error> {
                let unknown = || $crate::UnknownWord {
                    option: $option,
                    got: word.to_owned(),
                    words: <Self as $crate::Choice>::WORDS,
                };
                <Self as $crate::Choice>::from_word(word).ok_or_else(|| unknown().into())
            }
        }
    )+};
}
