//! The matrix of overfit cases: families, methods, ranks, accumulation and dropout, crossed.

/// Kinds of model, by their `model_type`.
pub(crate) const FAMILIES: [&str; 4] = ["llama", "qwen2", "qwen3", MIXTURE];

/// The family whose feed-forwards are mixtures of experts.
pub(crate) const MIXTURE: &str = "qwen3_moe";

/// Numbers of ranks that share layers. Four is more than the models have key and value heads.
pub(crate) const RANKS: [usize; 3] = [1, 2, 4];

/// What is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// Every weight.
    Full,
    /// LoRA on every linear layer of the blocks.
    Lora,
    /// DoRA on the same.
    Dora,
    /// LoRA over a base in four bits (NF4).
    Qlora,
}

impl Method {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Lora => "lora",
            Self::Dora => "dora",
            Self::Qlora => "qlora",
        }
    }
}

/// How ranks have the experts of a mixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Experts {
    /// A part of every one, as of every layer (`tp_size`).
    Parts,
    /// Some whole ones beside parts of layers (`enable_expert_parallel`).
    Whole,
    /// Some whole ones, and rows of their own (`ep_size`).
    Exchanged,
}

/// One run of the matrix.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Case {
    pub(crate) family: &'static str,
    pub(crate) method: Method,
    /// Ranks that have one model between them.
    pub(crate) tp: usize,
    pub(crate) experts: Experts,
    /// Micro-batches of a step of four rows.
    pub(crate) accumulation: usize,
    pub(crate) dropout: f64,
}

impl Case {
    /// The folder of its result.
    pub(crate) fn folder(&self) -> String {
        let Self { family, method, tp, experts, accumulation, dropout } = self;
        let experts = match experts {
            Experts::Parts => "",
            Experts::Whole => "-whole",
            Experts::Exchanged => "-exchanged",
        };
        format!("{family}-{}-{tp}{experts}-{accumulation}-{dropout}", method.name())
    }

    /// The same on one rank.
    pub(crate) fn alone(&self) -> Self {
        Self { tp: 1, experts: Experts::Parts, ..self.clone() }
    }
}

/// The cases of a family; one rank comes before the ranks that are held to it.
pub(crate) fn cases(family: &'static str, quick: bool) -> Vec<Case> {
    let mut all = Vec::new();
    let methods: &[Method] = match family {
        MIXTURE => &[Method::Full, Method::Lora],
        "llama" => &[Method::Full, Method::Lora, Method::Dora, Method::Qlora],
        _ => &[Method::Full, Method::Lora, Method::Dora],
    };
    for &method in methods {
        for accumulation in [1, 4] {
            for dropout in [0.0, 0.1] {
                for tp in RANKS {
                    for experts in [Experts::Parts, Experts::Whole, Experts::Exchanged] {
                        all.push(Case { family, method, tp, experts, accumulation, dropout });
                    }
                }
            }
        }
    }
    all.retain(|c| c.experts == Experts::Parts || family == MIXTURE && c.tp > 1);
    // A step's four rows are dealt evenly, so that the balancing loss is the same.
    all.retain(|c| c.experts != Experts::Exchanged || 4usize.is_multiple_of(c.tp));
    // Full training has no adapter to drop from, and PEFT's adapters on experts drop nothing.
    all.retain(|c| c.method != Method::Full && family != MIXTURE || c.dropout == 0.0);
    if quick {
        // Every family, every method, every number of ranks, both accumulations and both dropouts occur.
        all.retain(|c| match family {
            "llama" if c.method == Method::Qlora => c.accumulation == 4 && c.dropout > 0.0 && c.tp < 4,
            "llama" => c.method == Method::Lora && c.accumulation == 1 && c.tp < 4,
            MIXTURE => {
                let whole = c.tp == 2 && c.experts != Experts::Parts;
                c.method == Method::Lora && c.accumulation == 1 && (c.tp == 1 || whole)
            }
            "qwen2" => c.method == Method::Dora && c.accumulation == 1 && c.dropout > 0.0 && c.tp != 4,
            _ => c.method == Method::Full && c.accumulation == 4 && c.tp != 2,
        });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_is_whole_and_the_quick_part_touches_everything() {
        let all = |quick| -> Vec<Case> { FAMILIES.iter().flat_map(|f| cases(f, quick)).collect() };
        assert_eq!(all(false).len(), 3 * (6 + 12 + 12) + 12 + 2 * 2 * (1 + 2 + 2 + 2));
        let quick = all(true);
        assert!(quick.len() < 14);
        for experts in [Experts::Whole, Experts::Exchanged] {
            assert!(quick.iter().any(|c| c.experts == experts));
        }
        for tp in RANKS {
            assert!(quick.iter().any(|c| c.tp == tp), "no tp {tp}");
        }
        for method in [Method::Full, Method::Lora, Method::Dora, Method::Qlora] {
            assert!(quick.iter().any(|c| c.method == method), "no {}", method.name());
        }
        assert!(quick.iter().any(|c| c.accumulation == 4) && quick.iter().any(|c| c.dropout > 0.0));
        for cases in [all(false), quick] {
            for (at, case) in cases.iter().enumerate() {
                assert!(cases[..=at].contains(&case.alone()), "{case:?} before what it is held to");
            }
        }
    }
}
