//! The model card: `README.md` with the front matter that the Hugging Face hub reads.

use std::fmt::Write;

use crate::record::Record;
use crate::wording::{bytes, count, duration, figure};

/// What a run made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Produced {
    /// A PEFT adapter folder.
    Adapter,
    /// A full model folder.
    Model,
}

/// A prompt and what a trained model made of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// The prompt as the model was given it: of a conversation what the chat template makes of it.
    pub prompt: String,
    /// The user's own words, of a conversation.
    pub user: Option<String>,
    /// What came after it.
    pub completion: String,
}

/// What a card says.
#[derive(Clone, Debug)]
pub struct ModelCard<'a> {
    /// The name in the heading: the output folder's.
    pub name: &'a str,
    /// The base model, as it was named.
    pub base_model: &'a str,
    /// The data set, as it was named.
    pub dataset: &'a str,
    /// The trainer: `sft`.
    pub trainer: &'a str,
    /// What was made.
    pub produced: Produced,
    /// Whether the model scores texts instead of writing them.
    pub scores: bool,
    /// Whether the model has a chat template, which decides the example's form.
    pub conversational: bool,
    /// Options that differ from their defaults, as written.
    pub options: &'a [(String, String)],
    /// The run's log.
    pub records: &'a [Record],
    /// The time the run took.
    pub time: std::time::Duration,
    /// A prompt and what the trained model makes of it.
    pub sample: Option<&'a Sample>,
    /// burnish's version.
    pub version: &'a str,
}

impl ModelCard<'_> {
    /// The card as Markdown.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let mut card = String::new();
        self.front_matter(&mut card);
        let what = match self.produced {
            Produced::Adapter => "an adapter for",
            Produced::Model => "a fine-tuned version of",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            card,
            "# {}\n\nThis is {} `{}`, trained by [burnish](https://github.com/burnish-rs/burnish) {} on `{}` ({}).\n",
            self.name,
            what,
            self.base_model,
            self.version,
            self.dataset,
            self.trainer.to_uppercase()
        );
        self.use_it(&mut card);
        if let Some(Sample { prompt, completion, .. }) = self.sample {
            let _ =
                writeln!(card, "## Sample\n\n{}\n{}", quoted("Prompt", prompt), quoted("Output", completion));
        }
        self.training(&mut card);
        card
    }

    fn front_matter(&self, card: &mut String) {
        let library = match self.produced {
            Produced::Adapter => "peft",
            Produced::Model => "transformers",
        };
        let task = if self.scores { "text-classification" } else { "text-generation" };
        let _ = writeln!(
            card,
            "---\nbase_model: {}\nlibrary_name: {library}\nmodel_name: {}\npipeline_tag: {task}\ntags:\n- burnish\n- {}",
            yaml(self.base_model),
            yaml(self.name),
            self.trainer
        );
        if self.produced == Produced::Adapter {
            let _ = writeln!(card, "- lora\n- {}", yaml(&format!("base_model:adapter:{}", self.base_model)));
        }
        card.push_str("---\n\n");
    }

    fn use_it(&self, card: &mut String) {
        let (model, adapter) = match self.produced {
            Produced::Adapter => (self.base_model, format!(" --adapter_name_or_path {}", shell(self.name))),
            Produced::Model => (self.name, String::new()),
        };
        if self.scores {
            return self.score_with_it(card, model, &adapter);
        }
        let prompt = self.sample.map_or("Hello", |sample| sample.user.as_ref().unwrap_or(&sample.prompt));
        let _ = writeln!(
            card,
            "## Use it\n\n```sh\nburnish generate --model_name_or_path {}{adapter} --prompt {}\n```\n\n```python",
            shell(model),
            shell(prompt)
        );
        let (class, import) = match self.produced {
            Produced::Adapter => ("AutoPeftModelForCausalLM", "from peft import AutoPeftModelForCausalLM\n"),
            Produced::Model => ("AutoModelForCausalLM", ""),
        };
        let tokenizer = match self.produced {
            Produced::Adapter => "from transformers import AutoTokenizer",
            Produced::Model => "from transformers import AutoModelForCausalLM, AutoTokenizer",
        };
        let inputs = if self.conversational {
            format!(
                "inputs = tokenizer.apply_chat_template(\n    [{{\"role\": \"user\", \"content\": {}}}],\n    \
                 add_generation_prompt=True, return_dict=True, return_tensors=\"pt\",\n)",
                python(prompt)
            )
        } else {
            format!("inputs = tokenizer({}, return_tensors=\"pt\")", python(prompt))
        };
        let folder = python(self.name);
        let _ = writeln!(
            card,
            "{import}{tokenizer}\n\nmodel = {class}.from_pretrained({folder})\ntokenizer = \
             AutoTokenizer.from_pretrained({folder})\n{inputs}\noutput = model.generate(**inputs, max_new_tokens=64)\n\
             print(tokenizer.decode(output[0], skip_special_tokens=True))\n```\n"
        );
    }

    fn score_with_it(&self, card: &mut String, model: &str, adapter: &str) {
        let (class, import) = match self.produced {
            Produced::Adapter => (
                "AutoPeftModelForSequenceClassification",
                "from peft import AutoPeftModelForSequenceClassification\nfrom transformers import AutoTokenizer",
            ),
            Produced::Model => (
                "AutoModelForSequenceClassification",
                "from transformers import AutoModelForSequenceClassification, AutoTokenizer",
            ),
        };
        let folder = python(self.name);
        let _ = writeln!(
            card,
            "## Use it\n\n```sh\nburnish score --model_name_or_path {}{adapter} --dataset_name rows.jsonl\n```\n\n\
             ```python\n{import}\n\nmodel = {class}.from_pretrained({folder}, num_labels=1)\ntokenizer = \
             AutoTokenizer.from_pretrained({folder})\ninputs = tokenizer(\"Hello\", return_tensors=\"pt\")\n\
             print(model(**inputs).logits[0, 0].item())\n```\n",
            shell(model),
        );
    }

    fn training(&self, card: &mut String) {
        card.push_str("## Training\n\n![loss](loss.svg)\n\n");
        let last = |name: &str| self.records.iter().rev().find_map(|record| record.get(name));
        let first = |name: &str| self.records.iter().find_map(|record| record.get(name));
        card.push_str("| | first | last |\n|---|---|---|\n");
        for (name, label) in [
            ("loss", "loss"),
            ("mean_token_accuracy", "token accuracy"),
            ("eval_loss", "evaluation loss"),
            ("eval_mean_token_accuracy", "evaluation token accuracy"),
        ] {
            if let (Some(first), Some(last)) = (first(name), last(name)) {
                let _ = writeln!(card, "| {label} | {} | {} |", figure(first), figure(last));
            }
        }
        let steps = self.records.last().map_or(0, |record| record.step);
        let mut facts = vec![format!("{steps} steps in {}", duration(self.time))];
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts that were whole")]
        if let Some(tokens) = last("num_tokens") {
            facts.push(format!("{} tokens", count(tokens as u64)));
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts that were whole")]
        if let Some(memory) = last("peak_memory_bytes") {
            facts.push(format!("at most {} of memory", bytes(memory as u64)));
        }
        let _ = writeln!(card, "\n{}. Every figure is in `metrics.jsonl`.", facts.join(", "));
        if !self.options.is_empty() {
            card.push_str("\n| option | value |\n|---|---|\n");
            for (name, value) in self.options {
                let _ = writeln!(card, "| `{name}` | `{}` |", value.replace('|', "\\|").replace('`', "'"));
            }
        }
    }
}

/// Text as a YAML double-quoted scalar, which JSON's strings are.
fn yaml(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Text as a Python literal, which JSON's strings are.
fn python(text: &str) -> String {
    yaml(text)
}

/// Text as one word of a shell.
fn shell(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:@%+,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.into()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// Text as a fenced block that it cannot break out of.
fn quoted(title: &str, text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{title}:\n\n{fence}text\n{}\n{fence}\n", text.trim_end())
}
