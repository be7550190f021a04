//! `TpPlan`: styles by module pattern.

use std::collections::BTreeMap;
use std::collections::btree_map::IntoIter;

use serde::{Deserialize, Serialize};

use crate::{Style, TpError};

/// Patterns of module or parameter names and their styles, as Transformers' `base_model_tp_plan`.
///
/// A pattern is a name with layer numbers as `*` (`model.layers.*.self_attn.q_proj`), or a name as it is. A parameter's own
/// name comes before its module's, and a name as it is before one with `*`; a module's style is that of its weight and its
/// bias. Nothing else matches: there are no partial names.
///
/// ```
/// use burnish_tp::{Style, TpPlan};
///
/// // as in config.json, where names are relative to the base model
/// let base: TpPlan = serde_json::from_str(
///     r#"{"layers.*.self_attn.q_proj": "colwise", "layers.*.self_attn.o_proj": "rowwise"}"#,
/// )?;
/// let plan = base.under("model").with("lm_head", Style::ColwiseGather);
/// assert_eq!(plan.style("model.layers.11.self_attn.o_proj.weight"), Some(Style::Rowwise));
/// assert_eq!(plan.style("lm_head.weight"), Some(Style::ColwiseGather));
/// assert_eq!(plan.style("model.norm.weight"), None);
/// # Ok::<_, serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>", into = "BTreeMap<String, String>")]
pub struct TpPlan {
    styles: BTreeMap<String, Style>,
}

impl TpPlan {
    /// A plan that divides nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The plan with one more rule; it replaces one of the same pattern.
    #[must_use]
    pub fn with(mut self, pattern: impl Into<String>, style: Style) -> Self {
        self.styles.insert(pattern.into(), style);
        self
    }

    /// The plan with another's rules, which replace those of the same pattern.
    #[must_use]
    pub fn overridden(mut self, by: Self) -> Self {
        self.styles.extend(by.styles);
        self
    }

    /// The same rules for names under `prefix`.
    #[must_use]
    pub fn under(self, prefix: &str) -> Self {
        let styles = self.styles.into_iter().map(|(p, style)| (format!("{prefix}.{p}"), style));
        Self { styles: styles.collect() }
    }

    /// The style of a parameter (`…q_proj.weight`) or of a module (`…q_proj`); `None` if the plan does not say, which is
    /// replicated.
    #[must_use]
    pub fn style(&self, name: &str) -> Option<Style> {
        self.rule(name).map(|(_, style)| style)
    }

    /// The pattern and style for a name.
    #[must_use]
    pub fn rule(&self, name: &str) -> Option<(&str, Style)> {
        let module = name.rsplit_once('.').map(|(module, _)| module);
        [Some(name), module].into_iter().flatten().find_map(|name| {
            let rule = self.styles.get_key_value(name).or_else(|| self.styles.get_key_value(&generic(name)));
            rule.map(|(pattern, style)| (pattern.as_str(), *style))
        })
    }

    /// All rules, by pattern.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Style)> {
        self.styles.iter().map(|(pattern, style)| (pattern.as_str(), *style))
    }

    /// Whether there are no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.styles.is_empty()
    }

    /// Fails if a pattern matches none of the parameters' `names`: a misspelt rule divides nothing and says nothing.
    ///
    /// # Errors
    /// [`TpError::Unmatched`].
    pub fn check<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<(), TpError> {
        let mut unmatched: Vec<&str> = self.styles.keys().map(String::as_str).collect();
        for name in names {
            if let Some((pattern, _)) = self.rule(name) {
                unmatched.retain(|other| *other != pattern);
            }
        }
        match unmatched.first() {
            Some(&pattern) => Err(TpError::Unmatched { pattern: pattern.to_owned() }),
            None => Ok(()),
        }
    }
}

/// A name with its numbers (whole components of digits) as `*`.
fn generic(name: &str) -> String {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let parts: Vec<&str> = name.split('.').map(|part| if number(part) { "*" } else { part }).collect();
    parts.join(".")
}

impl TryFrom<BTreeMap<String, String>> for TpPlan {
    type Error = TpError;

    fn try_from(written: BTreeMap<String, String>) -> Result<Self, TpError> {
        let rule = |(pattern, text): (String, String)| {
            let style = Style::read(&pattern, &text)?;
            Ok::<_, TpError>((pattern, style))
        };
        Ok(Self { styles: written.into_iter().map(rule).collect::<Result<_, _>>()? })
    }
}

impl From<TpPlan> for BTreeMap<String, String> {
    fn from(plan: TpPlan) -> Self {
        plan.into_iter().map(|(pattern, style)| (pattern, style.name().to_owned())).collect()
    }
}

impl<P: Into<String>> FromIterator<(P, Style)> for TpPlan {
    fn from_iter<I: IntoIterator<Item = (P, Style)>>(rules: I) -> Self {
        Self { styles: rules.into_iter().map(|(pattern, style)| (pattern.into(), style)).collect() }
    }
}

impl IntoIterator for TpPlan {
    type Item = (String, Style);
    type IntoIter = IntoIter<String, Style>;

    fn into_iter(self) -> Self::IntoIter {
        self.styles.into_iter()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn names_before_modules_and_literals_before_wildcards() {
        let plan: TpPlan = [
            ("layers.*.mlp.down_proj", Style::Rowwise),
            ("layers.*.mlp.down_proj.bias", Style::Replicated),
            ("layers.3.mlp.down_proj", Style::RowwiseSplitInput),
            ("w1.*.x", Style::Colwise),
        ]
        .into_iter()
        .collect();
        assert_eq!(plan.style("layers.0.mlp.down_proj.weight"), Some(Style::Rowwise));
        assert_eq!(plan.style("layers.0.mlp.down_proj"), Some(Style::Rowwise));
        assert_eq!(plan.style("layers.0.mlp.down_proj.bias"), Some(Style::Replicated));
        assert_eq!(plan.style("layers.3.mlp.down_proj.weight"), Some(Style::RowwiseSplitInput));
        assert_eq!(plan.style("layers.30.mlp.down_proj.weight"), Some(Style::Rowwise));
        // digits within a component are part of the name, and there are no partial matches
        assert_eq!(plan.style("w1.12.x.weight"), Some(Style::Colwise));
        assert_eq!(plan.style("w2.12.x.weight"), None);
        assert_eq!(plan.style("model.layers.0.mlp.down_proj.weight"), None);
        assert_eq!(plan.style("layers.0.mlp.down_proj.lora_A.weight"), None);
        assert_eq!(plan.rule("layers.1.mlp.down_proj.bias").unwrap().0, "layers.*.mlp.down_proj.bias");
    }

    #[test]
    fn wrong_styles_are_told_with_their_pattern() {
        let read = |text: &str| serde_json::from_str::<TpPlan>(text).unwrap_err().to_string();
        let message = read(r#"{"layers.*.mlp.up_proj": "columnwise"}"#);
        assert!(
            message.contains("`layers.*.mlp.up_proj` has style `columnwise`, expected one of colwise,"),
            "{message}"
        );
        for refused in ["sequence_parallel", "ep_router", "moe_tp_experts", "local_colwise"] {
            let message = read(&format!(r#"{{"layers.*.norm": "{refused}"}}"#));
            assert!(message.contains(refused) && message.contains("not supported"), "{message}");
        }
    }

    #[test]
    fn every_spelling_is_read_and_one_is_written() {
        let text = r#"{"a":"colwise","b":"colwise_rep","c":"colwise_gather_output","d":"rowwise","e":"rowwise_rep",
            "f":"rowwise_split_input","g":"embedding_rowwise","h":"vocab_parallel","i":"embedding_colwise",
            "j":"packed_colwise","k":"packed_rowwise","l":"replicated","m":"replicate",
            "n":"replicated_with_grad_allreduce"}"#;
        let plan: TpPlan = serde_json::from_str(text).unwrap();
        let written = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<TpPlan>(&written).unwrap(), plan);
        assert!(written.contains(r#""b":"colwise_gather_output""#), "{written}");
        assert!(written.contains(r#""h":"embedding_rowwise""#), "{written}");
        assert_eq!(plan.iter().count(), 14);
    }

    #[test]
    fn a_rule_that_matches_nothing_is_told() {
        let plan = TpPlan::new()
            .with("model.layers.*.mlp.up_proj", Style::Colwise)
            .with("model.layers.*.mlp.upp_proj", Style::Colwise);
        let error = plan.check(["model.layers.0.mlp.up_proj.weight", "lm_head.weight"]).unwrap_err();
        assert!(error.to_string().contains("`model.layers.*.mlp.upp_proj` matches no parameter"), "{error}");
        assert!(TpPlan::new().check([]).is_ok());
    }

    #[test]
    fn overrides_replace_rules_of_the_same_pattern() {
        let base = TpPlan::new().with("a", Style::Colwise).with("b", Style::Rowwise);
        let plan = base.overridden(TpPlan::new().with("b", Style::Replicated)).under("model");
        assert_eq!(plan.style("model.a"), Some(Style::Colwise));
        assert_eq!(plan.style("model.b"), Some(Style::Replicated));
    }
}
