//! The one table behind flags, files, `--help` and the reference: each option is declared once, in a group.

pub use crate::command::CommandInfo;
pub use crate::commands::COMMANDS;
pub use crate::raw::Raw;
pub use crate::value::{OptionValue, ValueKind};

/// Who gave an option its name and default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// TRL (`SFTConfig`, `ModelConfig`, `ScriptArguments`).
    Trl,
    /// Transformers (`TrainingArguments`, `GenerationConfig`).
    Transformers,
    /// PEFT (`LoraConfig`).
    Peft,
    /// DeepSpeed (`zero_optimization`; `zero_stage` as Accelerate spells its `stage`).
    DeepSpeed,
    /// burnish.
    Burnish,
}

impl Source {
    /// The project's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Trl => "TRL",
            Self::Transformers => "Transformers",
            Self::Peft => "PEFT",
            Self::DeepSpeed => "DeepSpeed",
            Self::Burnish => "burnish",
        }
    }
}

/// One option, as data.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The name: a key in files, and with `--` in front a flag.
    pub name: &'static str,
    /// The one line of `--help`.
    pub doc: String,
    /// Its shape on the command line.
    pub kind: ValueKind,
    /// The value when it is not given.
    pub default: Raw,
    /// Whose name it is.
    pub source: Source,
}

impl Entry {
    /// What help says of it when it is not given, after a space: that it is `required`, its default, or nothing.
    #[must_use]
    pub fn default_text(&self, required: &[&str]) -> String {
        if required.contains(&self.name) {
            " (required)".into()
        } else if self.default.is_nothing() {
            String::new()
        } else {
            format!(" [{}]", self.default.plain())
        }
    }
}

/// A group of options, as data.
#[derive(Clone, Debug)]
pub struct Group {
    /// The name of its struct.
    pub name: &'static str,
    /// The heading in `--help`.
    pub title: &'static str,
    /// Its options in reading order, with the defaults of the command that takes it.
    pub entries: Vec<Entry>,
    /// Its options with the group's own defaults.
    pub shared: fn() -> Vec<Entry>,
}

/// A value that an option does not take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// What the option takes.
    pub expected: String,
}

/// Options that belong together: a struct with one field per option.
pub trait OptionGroup: Default {
    /// The name of the struct, which no other group has.
    const NAME: &'static str;
    /// The heading in `--help`.
    const TITLE: &'static str;

    /// The options in reading order.
    fn entries() -> Vec<Entry>;

    /// Sets the option called `name`; `None` if this group has no such option.
    fn set(&mut self, name: &str, raw: &Raw) -> Option<Result<(), Mismatch>>;

    /// The present values, in the order of [`Self::entries`].
    fn values(&self) -> Vec<(&'static str, Raw)>;
}

/// Declares a group: the struct, its defaults and its table from one text.
macro_rules! options {
    (
        $(#[doc = $struct_doc:literal])+
        $group:ident, $title:literal;
        $($(#[doc = $doc:literal])+ $source:ident $name:ident: $type:ty = $default:expr;)+
    ) => {
        $(#[doc = $struct_doc])+
        #[derive(Clone, Debug, PartialEq)]
        pub struct $group {
            $($(#[doc = $doc])+ pub $name: $type,)+
        }

        impl Default for $group {
            fn default() -> Self {
                Self { $($name: $default,)+ }
            }
        }

        impl $crate::table::OptionGroup for $group {
            const NAME: &'static str = stringify!($group);
            const TITLE: &'static str = $title;

            fn entries() -> Vec<$crate::table::Entry> {
                let defaults = Self::default();
                vec![$($crate::table::Entry {
                    name: stringify!($name),
                    doc: concat!($($doc),+).trim().to_owned(),
                    kind: <$type as $crate::value::OptionValue>::KIND,
                    default: $crate::value::OptionValue::write(&defaults.$name),
                    source: $crate::table::Source::$source,
                }),+]
            }

            fn set(
                &mut self,
                name: &str,
                raw: &$crate::raw::Raw,
            ) -> Option<Result<(), $crate::table::Mismatch>> {
                match name {
                    $(stringify!($name) => Some(match <$type as $crate::value::OptionValue>::read(raw) {
                        Some(value) => {
                            self.$name = value;
                            Ok(())
                        }
                        None => Err($crate::table::Mismatch {
                            expected: <$type as $crate::value::OptionValue>::expected(),
                        }),
                    }),)+
                    _ => None,
                }
            }

            fn values(&self) -> Vec<(&'static str, $crate::raw::Raw)> {
                vec![$((stringify!($name), $crate::value::OptionValue::write(&self.$name))),+]
            }
        }
    };
}

pub(crate) use options;
