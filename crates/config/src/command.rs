//! A command's options: which groups they are made of, and how they are read.

use crate::checks::Checks;
use crate::commands::PlanOptions;
use crate::fault::ConfigError;
use crate::groups::TrainingOptions;
use crate::help;
use crate::invocation::Invocation;
use crate::parse::parse;
use crate::raw::Raw;
use crate::table::{Entry, Group, Mismatch, OptionGroup};

/// The options of one command.
pub trait Command: Default {
    /// The word after `burnish`.
    const NAME: &'static str;
    /// What it does, in one sentence.
    const ABOUT: &'static str;
    /// Options without which it cannot run.
    const REQUIRED: &'static [&'static str];

    /// The groups with their options, in reading order.
    fn groups() -> Vec<Group>;

    /// Sets one option; `None` if the command has none of this name.
    fn set(&mut self, name: &str, raw: &Raw) -> Option<Result<(), Mismatch>>;

    /// The present values, in reading order.
    fn values(&self) -> Vec<(&'static str, Raw)>;

    /// Looks for values out of range and for options that contradict each other.
    #[doc(hidden)]
    fn check(&self, checks: &mut Checks<'_>);

    /// Every option, in reading order.
    #[must_use]
    fn entries() -> Vec<Entry> {
        Self::groups().into_iter().flat_map(|group| group.entries).collect()
    }

    /// Whether it has the options of a training loop.
    #[must_use]
    fn trains() -> bool {
        Self::groups().iter().any(|group| group.name == <TrainingOptions as OptionGroup>::NAME)
    }

    /// The text of `--help`.
    #[must_use]
    fn help() -> String {
        help::text::<Self>()
    }

    /// Reads the words after the command's name, and the file that `--config` names.
    ///
    /// # Errors
    /// Everything that is wrong, at once: see [`Fault`](crate::Fault).
    fn parse<S: Into<String>>(words: impl IntoIterator<Item = S>) -> Result<Invocation<Self>, ConfigError> {
        let words: Vec<String> = words.into_iter().map(Into::into).collect();
        parse(&words, Self::REQUIRED, Self::NAME == PlanOptions::NAME)
    }

    /// As [`Self::parse`], to plan a run rather than to run it: only the model has to be there.
    ///
    /// # Errors
    /// As [`Self::parse`].
    fn parse_to_plan<S: Into<String>>(
        words: impl IntoIterator<Item = S>,
    ) -> Result<Invocation<Self>, ConfigError> {
        let words: Vec<String> = words.into_iter().map(Into::into).collect();
        parse(&words, PlanOptions::REQUIRED, true)
    }
}

/// A command, as data.
#[derive(Clone, Copy, Debug)]
pub struct CommandInfo {
    /// The word after `burnish`.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// Options without which it cannot run.
    pub required: &'static [&'static str],
    /// Its options by group.
    pub groups: fn() -> Vec<Group>,
    /// Its options.
    pub entries: fn() -> Vec<Entry>,
}

impl CommandInfo {
    pub(crate) const fn of<C: Command>() -> Self {
        Self { name: C::NAME, about: C::ABOUT, required: C::REQUIRED, groups: C::groups, entries: C::entries }
    }
}

/// Declares a command: the groups it is made of. Its rules are the method `rules`.
macro_rules! command {
    (
        $(#[doc = $doc:literal])+
        $command:ident, $name:literal, $about:literal, needs $required:expr,
        $(default { $($group_field:ident.$option:ident: $value:expr),+ $(,)? },)? {
            $($(#[doc = $field_doc:literal])+ $field:ident: $group:ty,)+
        }
    ) => {
        $(#[doc = $doc])+
        #[derive(Clone, Debug, PartialEq)]
        pub struct $command {
            $($(#[doc = $field_doc])+ pub $field: $group,)+
        }

        impl Default for $command {
            fn default() -> Self {
                #[allow(unused_mut, reason = "not every command has defaults of its own")]
                let mut options = Self { $($field: Default::default(),)+ };
                $($(options.$group_field.$option = $value;)+)?
                options
            }
        }

        impl $crate::command::Command for $command {
            const NAME: &'static str = $name;
            const ABOUT: &'static str = $about;
            const REQUIRED: &'static [&'static str] = &$required;

            fn groups() -> Vec<$crate::table::Group> {
                use $crate::table::{Group, OptionGroup};
                let mut groups = vec![$(Group {
                    name: <$group>::NAME,
                    title: <$group>::TITLE,
                    entries: <$group>::entries(),
                    shared: <$group>::entries,
                }),+];
                let mut values = Self::default().values().into_iter();
                // A command may have other defaults than the group.
                for entry in groups.iter_mut().flat_map(|group| &mut group.entries) {
                    entry.default = values.next().map_or($crate::raw::Raw::Null, |(_, raw)| raw);
                }
                groups
            }

            fn set(
                &mut self,
                name: &str,
                raw: &$crate::raw::Raw,
            ) -> Option<Result<(), $crate::table::Mismatch>> {
                use $crate::table::OptionGroup;
                $(if let Some(result) = self.$field.set(name, raw) {
                    return Some(result);
                })+
                None
            }

            fn values(&self) -> Vec<(&'static str, $crate::raw::Raw)> {
                use $crate::table::OptionGroup;
                let mut values = Vec::new();
                $(values.extend(self.$field.values());)+
                values
            }

            fn check(&self, checks: &mut $crate::checks::Checks<'_>) {
                self.rules(checks);
            }
        }
    };
}

pub(crate) use command;
