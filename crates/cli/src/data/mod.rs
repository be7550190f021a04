//! `burnish data`: what a run will see of its rows.

mod page;
mod pieces;
mod summary;
mod text;

use std::process::ExitCode;

use burnish_config::groups::ViewOptions;
use burnish_config::{Command, DataOptions, TrainerOptions};
use burnish_report::replace;
use burnish_trainers::{Trainer, WithTrainer, trainer_names, with_trainer};

use crate::data::page::page;
use crate::data::text::Paint;
use crate::refusal::{refuse, require};

/// Shows the rows of a run of the trainer that the first word names, with that trainer's options; of `sft` where none does.
pub(crate) fn run(words: &[String]) -> anyhow::Result<ExitCode> {
    let (trainer, rest) = match words.split_first() {
        Some((trainer, rest)) if !trainer.starts_with('-') => (trainer.as_str(), rest),
        _ => ("sft", words),
    };
    let (of_view, of_trainer) = divided(rest);
    let asks = |word: &String| word == "--help" || word == "-h";
    if words.first().is_none_or(asks) {
        crate::voice::result(format_args!(
            "{}\n\n`burnish data [{}] [OPTIONS]` takes the options of the trainer too, sft's where none is named.",
            DataOptions::help().trim_end(),
            trainer_names().join("|")
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(view) = crate::resolved(DataOptions::parse(of_view)?)? else { return Ok(ExitCode::SUCCESS) };
    with_trainer(trainer, Data { words: &of_trainer, view: view.options.view }).unwrap_or_else(|| {
        refuse!(
            UnknownCommand,
            "`{trainer}` trains on no rows; `burnish data [{}] [OPTIONS]` takes the options of the trainer",
            trainer_names().join("|")
        )
    })
}

/// The words that are options of the view, and the others.
fn divided(words: &[String]) -> (Vec<String>, Vec<String>) {
    let own: Vec<&str> = DataOptions::entries().iter().map(|entry| entry.name).collect();
    let is_own = |word: &str| {
        let name =
            word.strip_prefix("--").map(|flag| flag.split('=').next().unwrap_or(flag).replace('-', "_"));
        name.is_some_and(|name| own.contains(&name.as_str()))
    };
    let (mut of_view, mut others) = (Vec::new(), Vec::new());
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        if !is_own(word) {
            others.push(word.clone());
            continue;
        }
        of_view.push(word.clone());
        if !word.contains('=')
            && let Some(value) = words.next_if(|next| !next.starts_with("--"))
        {
            of_view.push(value.clone());
        }
    }
    (of_view, others)
}

struct Data<'a> {
    words: &'a [String],
    view: ViewOptions,
}

impl WithTrainer for Data<'_> {
    type Output = anyhow::Result<ExitCode>;

    fn with<T: Trainer>(self) -> Self::Output {
        let Some(resolved) = crate::resolved(T::Options::parse_to_plan(self.words.iter().cloned())?)? else {
            return Ok(ExitCode::SUCCESS);
        };
        let options = resolved.options;
        let rows = options.run_options().data;
        require!(
            !(rows.dataset_name.is_empty() && rows.datasets.0.is_empty()),
            MissingOption,
            "dataset_name is missing: `burnish data` shows the rows of a run"
        );
        let view = T::rows(&options, self.view.show_rows)?;
        let trainer = T::Options::NAME;
        crate::voice::painted(text::text(trainer, &view, Paint::of_terminal())?)?;
        if let Some(path) = &self.view.html {
            replace(path, page(trainer, &view)?.as_bytes())?;
            crate::voice::note(format_args!("the page is {}", path.display()));
        }
        match view.refusal {
            Some(refusal) => Err(refusal.into()),
            None => Ok(ExitCode::SUCCESS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_view_are_told_from_the_trainers() {
        let words =
            ["--config", "run.yaml", "--show-rows", "5", "--html=a.html", "--packing", "--show_rows=7"];
        let words: Vec<String> = words.map(str::to_owned).to_vec();
        let (of_view, others) = divided(&words);
        assert_eq!(of_view, ["--show-rows", "5", "--html=a.html", "--show_rows=7"]);
        assert_eq!(others, ["--config", "run.yaml", "--packing"]);
    }
}
