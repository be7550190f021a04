//! Gemma.

use burnish_core::Activation;

use serde_json::{Map, Value, json};

use super::mixtures;
use super::reader::{Defaults, LLAMA_DEFAULTS, Reader, with_defaults};
use crate::ModelError;
use crate::spec::config::ConfigFile;
use crate::spec::rope::{Rope, RopeDefaults};
use crate::spec::{
    AltUp, BlockLayout, BlockSizes, HeadGates, KeysValues, NormKind, PerLayerInputs, QkNorm, Spec, names,
    wrong,
};

/// What the three Gemmas share.
pub(super) const GEMMA: Defaults = Defaults {
    head_dim: Some(256),
    max_positions: 8192,
    tied: true,
    pad_token: Some(0),
    activation: "gelu_pytorch_tanh",
    ..LLAMA_DEFAULTS
};

pub(super) fn gemma_spec(r: &Reader<'_>, defaults: &Defaults) -> Result<Spec, ModelError> {
    r.only("use_bidirectional_attention", false)?;
    let mut spec = r.spec(defaults)?;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    spec.norm = NormKind::RmsPlusOne;
    spec.embedding_scale = (spec.hidden as f64).sqrt() as f32;
    Ok(spec)
}

pub(super) fn gemma(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = gemma_spec(r, &Defaults { kv_heads: Some(16), ..GEMMA })?;
    // The first releases say `gelu` and mean the tanh form.
    if spec.activation == Activation::Gelu {
        spec.activation = Activation::GeluTanh;
    }
    Ok(spec)
}

pub(super) fn gemma2(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults { kv_heads: Some(4), activation_key: "hidden_activation", ..GEMMA };
    let mut spec = gemma_spec(r, &defaults)?;
    spec.names = names::GEMMA2;
    spec.layout = BlockLayout::Sandwich;
    spec.attention_scale = r.f32("query_pre_attn_scalar", 256.0)?.powf(-0.5);
    spec.attention_softcap = r.nullable("attn_logit_softcapping", Some(50.0))?;
    spec.logit_softcap = r.nullable("final_logit_softcapping", Some(30.0))?;
    let window = r.window(Some(4096))?;
    r.windows(&mut spec, window, |layer| layer % 2 == 0)?;
    Ok(spec)
}

pub(super) fn gemma3(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults =
        Defaults { kv_heads: Some(4), max_positions: 131_072, activation_key: "hidden_activation", ..GEMMA };
    let mut spec = gemma_spec(r, &defaults)?;
    spec.names = names::GEMMA2;
    spec.layout = BlockLayout::Sandwich;
    spec.qk_norm = Some(QkNorm::PerHead);
    spec.attention_scale = r.f32("query_pre_attn_scalar", 256.0)?.powf(-0.5);
    // Transformers has `attn_logit_softcapping` in the configuration and applies none.
    spec.logit_softcap = r.nullable("final_logit_softcapping", None)?;
    let (window, pattern) = (r.window(Some(4096))?, r.pattern(6)?);
    r.windows(&mut spec, window, |layer| (layer + 1) % pattern != 0)?;
    r.ropes_by_type(&mut spec, [10_000.0, 1_000_000.0], None)?;
    let sliding = r.sliding(spec.layers.len(), |layer| (layer + 1) % pattern != 0)?;
    for (layer, slides) in spec.layers.iter_mut().zip(sliding) {
        layer.rope = Some(usize::from(slides));
    }
    Ok(spec)
}

/// Muse Glimmer's text: Gemma 2's blocks with gates of attention's elements, norms without weights of embeddings, queries and keys, and blocks
/// that see everything and do not turn.
pub(super) fn muse_glimmer(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let config = with_defaults(
        r.config,
        json!({"vocab_size": 202_048, "hidden_size": 6656, "intermediate_size": 19_968, "num_hidden_layers": 52,
            "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128}),
    );
    let r = &Reader { config: &config, family: r.family };
    let defaults = Defaults {
        max_positions: 131_072,
        norm_eps: 1e-5,
        activation_key: "hidden_activation",
        ..LLAMA_DEFAULTS
    };
    let mut spec = Spec { names: names::MUSE_GLIMMER, ..r.spec(&defaults)? };
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    (spec.norm, spec.layout) = (NormKind::RmsPlusOne, BlockLayout::Sandwich);
    spec.post_norm_eps = Some(r.f32("post_norm_eps", 1e-8)?);
    (spec.embedding_norm, spec.end_norms) = (true, Some([NormKind::RmsBare, NormKind::Rms]));
    (spec.qk_norm, spec.head_gates) = (Some(QkNorm::PerHeadBare), Some(HeadGates::Elements));
    spec.attention_scale *= r.f32("qk_scale_factor", 3.87)?;
    spec.logit_scale = r.f32("output_multiplier", 0.196_116_135_138_184_04)?;
    spec.logit_softcap = Some(r.f32("final_logit_softcapping", 20.0)?);
    let last = spec.layers.len() - 1;
    let window = r.window(Some(2048))?;
    r.windows(&mut spec, window, |layer| !(last - layer).is_multiple_of(4))?;
    let turned: Vec<bool> = match r.config.get("layer_rope_theta") {
        None => (0..=last).map(|layer| !(last - layer).is_multiple_of(4)).collect(),
        // Its class asks these for nothing but whether they are zero.
        Some(given) => {
            let list = given.as_array().filter(|list| list.len() > last);
            let list: Option<Vec<bool>> = list
                .and_then(|list| list.iter().map(|theta| theta.as_f64().map(|theta| theta != 0.0)).collect());
            list.ok_or_else(|| {
                wrong(
                    "layer_rope_theta",
                    &given.to_string(),
                    "one number per layer, 0 where it does not turn",
                )
            })?
        }
    };
    for (layer, turned) in spec.layers.iter_mut().zip(turned) {
        layer.rope = turned.then_some(0);
    }
    Ok(spec)
}

pub(super) fn vaultgemma(r: &Reader<'_>) -> Result<Spec, ModelError> {
    Ok(Spec { names: names::VAULTGEMMA, layout: BlockLayout::Pre, ..gemma2(r)? })
}

/// Gemma 4's text, dense or with experts beside each feed-forward. Blocks that see everything have heads of their own sizes; later ones may read an earlier one's keys and
/// values; each may be given an embedding of the token beside the stream.
pub(super) fn gemma4(r: &Reader<'_>) -> Result<Spec, ModelError> {
    // Tokens of pictures alone see each other both ways under "vision".
    if let Some(other) = r.config.str("use_bidirectional_attention")?.filter(|word| *word != "vision") {
        return Err(ModelError::Unsupported {
            key: "use_bidirectional_attention".to_owned(),
            got: other.to_owned(),
            supported: "null, vision",
        });
    }
    let defaults =
        Defaults { kv_heads: Some(4), max_positions: 131_072, activation_key: "hidden_activation", ..GEMMA };
    // Its ropes are by kinds of blocks, and read below.
    let mut config = r.config.clone();
    config.json.remove("rope_parameters");
    let mut spec = Reader { config: &config, family: r.family }.spec(&defaults)?;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    let mixed = r.bool("enable_moe_block", false)?;
    spec.names = if mixed { names::GEMMA4_MOE } else { names::GEMMA2 };
    if mixed {
        mixtures::beside(r, &mut spec)?;
    }
    spec.layout = BlockLayout::Sandwich;
    spec.qk_norm = Some(QkNorm::PerHeadAndValues);
    spec.attention_scale = 1.0;
    spec.embedding_scale = (spec.hidden as f64).sqrt() as f32;
    spec.logit_softcap = r.nullable("final_logit_softcapping", None)?;
    spec.layer_scalars = true;
    let layers = spec.layers.len();
    let mut sliding = r.sliding(layers, |layer| (layer + 1) % 6 != 0)?;
    // The last block sees everything, whatever is said of it.
    if let Some(last) = sliding.last_mut() {
        *last = false;
    }
    let window = r.window(Some(512))?;
    let keys_as_values = r.bool("attention_k_eq_v", false)?;
    let global = global_sizes(r, &spec, keys_as_values, &sliding)?;
    spec.ropes = vec![
        rope_of(r, &spec, "full_attention", global.head_dim)?,
        rope_of(r, &spec, "sliding_attention", spec.head_dim)?,
    ];
    let borrowed = borrowed_keys(&sliding, r.config.usize("num_kv_shared_layers")?.unwrap_or(0))?;
    let doubled = r.bool("use_double_wide_mlp", false)?;
    for (at, slides) in sliding.iter().copied().enumerate() {
        let keys = match borrowed[at] {
            Some(lender) => KeysValues::Of(lender),
            _ if keys_as_values && !slides => KeysValues::KeysAsValues,
            _ => KeysValues::Own,
        };
        let mut sizes = if slides { spec.sizes(layers) } else { global };
        if doubled && borrowed[at].is_some() {
            sizes.intermediate *= 2;
        }
        if let KeysValues::Of(lender) = keys {
            spec.layers[lender].lends = true;
        }
        let own = &mut spec.layers[at];
        own.window = window.filter(|_| slides);
        own.rope = Some(usize::from(slides));
        own.keys = keys;
        own.sizes = Some(sizes);
    }
    let width = r.config.usize("hidden_size_per_layer_input")?;
    let width = if r.config.json.contains_key("hidden_size_per_layer_input") { width } else { Some(256) };
    if let Some(width) = width.filter(|&width| width > 0) {
        spec.per_layer = Some(PerLayerInputs { width, tokens: tokens_with_inputs(r)? });
    }
    Ok(spec)
}

/// Tokens that have an embedding for each block.
fn tokens_with_inputs(r: &Reader<'_>) -> Result<usize, ModelError> {
    r.positive_or("vocab_size_per_layer_input", 262_144)
}

/// Of each block whose keys and values it reads: the last ones those of the last block of their kind that has its own.
fn borrowed_keys(sliding: &[bool], borrowing: usize) -> Result<Vec<Option<usize>>, ModelError> {
    let layers = sliding.len();
    let first = layers
        .checked_sub(borrowing)
        .ok_or_else(|| wrong("num_kv_shared_layers", &borrowing.to_string(), "at most num_hidden_layers"))?;
    let of = |(at, slides): (usize, &bool)| {
        if at < first {
            return Ok(None);
        }
        let lender = (0..first).rev().find(|&lender| sliding[lender] == *slides);
        lender.map(Some).ok_or_else(|| {
            let got = format!("{borrowing} of {layers}");
            let expected = "a number that leaves a block of each kind with keys and values of its own";
            wrong("num_kv_shared_layers", &got, expected)
        })
    };
    sliding.iter().enumerate().map(of).collect()
}

/// Gemma 3n's text: streams beside each other, feed-forwards whose smaller gates are nothing, and what Gemma 4 has too.
pub(super) fn gemma3n(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults =
        Defaults { kv_heads: Some(2), max_positions: 32_768, activation_key: "hidden_activation", ..GEMMA };
    let widths = match r.config.get("intermediate_size") {
        Some(Value::Array(all)) => {
            let expected = "a positive integer for each block";
            let wrong = || wrong("intermediate_size", &Value::from(all.clone()).to_string(), expected);
            let widths = all.iter().map(|n| n.as_u64().filter(|&n| n > 0).map(|n| n as usize));
            Some(widths.collect::<Option<Vec<_>>>().filter(|all| !all.is_empty()).ok_or_else(wrong)?)
        }
        _ => None,
    };
    let mut config = r.config.clone();
    if let Some(widths) = &widths {
        config.json.insert("intermediate_size".to_owned(), widths[0].into());
    }
    let mut spec = Reader { config: &config, family: r.family }.spec(&defaults)?;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    spec.names = names::GEMMA3N;
    spec.layout = BlockLayout::Sandwich;
    spec.qk_norm = Some(QkNorm::PerHeadAndValues);
    spec.attention_scale = 1.0;
    spec.embedding_scale = (spec.hidden as f64).sqrt() as f32;
    spec.logit_softcap = r.nullable("final_logit_softcapping", Some(30.0))?;
    let layers = spec.layers.len();
    let sliding = r.sliding(layers, |layer| (layer + 1) % 5 != 0)?;
    let window = r.window(Some(512))?;
    r.ropes_by_type(&mut spec, [10_000.0, 1_000_000.0], None)?;
    let widths = widths.unwrap_or_else(|| vec![spec.intermediate; layers]);
    let cutoffs = cutoffs(r, layers)?;
    if widths.len() != layers {
        let got = format!("{} for {layers} blocks", widths.len());
        return Err(wrong("intermediate_size", &got, "an integer, or one for each block"));
    }
    let borrowed = borrowed_keys(&sliding, r.config.usize("num_kv_shared_layers")?.unwrap_or(15))?;
    for (at, lender) in borrowed.iter().enumerate() {
        let sizes = BlockSizes { intermediate: widths[at], ..spec.sizes(layers) };
        if let Some(lender) = *lender {
            spec.layers[lender].lends = true;
        }
        let own = &mut spec.layers[at];
        own.window = window.filter(|_| sliding[at]);
        own.rope = Some(usize::from(sliding[at]));
        own.keys = lender.map_or(KeysValues::Own, KeysValues::Of);
        own.sizes = Some(sizes);
        own.cutoff = cutoffs[at];
    }
    let width = r.positive_or("hidden_size_per_layer_input", 256)?;
    spec.per_layer = Some(PerLayerInputs { width, tokens: tokens_with_inputs(r)? });
    let streams = r.positive_or("altup_num_inputs", 4)?;
    if !(2..=MOST_STREAMS).contains(&streams) {
        return Err(wrong("altup_num_inputs", &streams.to_string(), "between 2 and 64 streams"));
    }
    let active = r.config.usize("altup_active_idx")?.unwrap_or(0);
    if active >= streams {
        return Err(wrong("altup_active_idx", &active.to_string(), "less than altup_num_inputs"));
    }
    spec.altup = Some(AltUp {
        streams,
        active,
        scaled: r.bool("altup_correct_scale", true)?,
        laurel_rank: r.positive_or("laurel_rank", 64)?,
    });
    Ok(spec)
}

/// Streams beside each other, at most.
const MOST_STREAMS: usize = 64;

/// Of each block at how many standard deviations gates are cut off, from the part of them that is to be nothing.
fn cutoffs(r: &Reader<'_>, layers: usize) -> Result<Vec<Option<f32>>, ModelError> {
    let key = "activation_sparsity_pattern";
    let parts = match r.config.get(key) {
        None | Some(Value::Null) => {
            let sparse = if layers > 10 { 10 } else { 0 };
            (0..layers).map(|layer| if layer < sparse { 0.95 } else { 0.0 }).collect()
        }
        Some(given) => {
            let all = given.as_array().filter(|all| all.len() == layers);
            let part = |x: &Value| x.as_f64().filter(|part| *part < 1.0);
            let all: Option<Vec<f64>> = all.and_then(|all| all.iter().map(part).collect());
            all.ok_or_else(|| wrong(key, &given.to_string(), "a number below 1 for each block"))?
        }
    };
    Ok(parts
        .into_iter()
        .map(|part| (part > 0.0).then(|| normal_quantile(f64::from(part as f32)) as f32))
        .collect())
}

/// Below what a part `p` of a normal distribution lies: by bisection of its integral.
fn normal_quantile(p: f64) -> f64 {
    let (mut low, mut high) = (-40.0_f64, 40.0_f64);
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if normal_part_below(middle) < p {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
}

/// The part of a normal distribution below `x`: the series of Marsaglia (Evaluating the normal distribution, 2004).
fn normal_part_below(x: f64) -> f64 {
    if x.abs() > 9.0 {
        return if x > 0.0 { 1.0 } else { 0.0 };
    }
    let (mut sum, mut term, mut i) = (x, x, 1.0);
    loop {
        i += 2.0;
        term *= x * x / i;
        let next = sum + term;
        if next == sum {
            let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
            return 0.5 + sum * density;
        }
        sum = next;
    }
}

/// The text of Gemma 4's models that have no encoders beside it (12B): neither experts nor inputs of blocks.
pub(super) fn gemma4_unified(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = r.config.clone();
    for (key, default) in [("sliding_window", 1024), ("max_position_embeddings", 262_144)] {
        config.json.entry(key).or_insert(Value::from(default));
    }
    for (key, only) in
        [("hidden_size_per_layer_input", Value::from(0)), ("enable_moe_block", Value::from(false))]
    {
        config.json.insert(key.to_owned(), only);
    }
    gemma4(&Reader { config: &config, family: r.family })
}

/// The sizes of Gemma 4's blocks that see everything: in `global_head_dim` and `num_global_key_value_heads`, or block by
/// block in `per_layer_config`, as Transformers writes them.
fn global_sizes(
    r: &Reader<'_>,
    spec: &Spec,
    keys_as_values: bool,
    sliding: &[bool],
) -> Result<BlockSizes, ModelError> {
    let (mut head_dim, mut kv_heads) = (
        r.config.usize("global_head_dim")?.unwrap_or(512),
        r.config.usize("num_global_key_value_heads")?.filter(|_| keys_as_values).unwrap_or(spec.kv_heads),
    );
    if let Some(each) = r.config.get("per_layer_config").and_then(Value::as_object) {
        let of = |at: usize| -> Result<(usize, usize), ModelError> {
            // Transformers writes numbers as wide as the last one: 05 of twelve.
            let named = each.iter().find(|(key, _)| key.parse() == Ok(at)).map(|(_, value)| value);
            let own = named.and_then(Value::as_object).cloned().unwrap_or_default();
            let known = |key: &&String| !matches!(key.as_str(), "head_dim" | "num_key_value_heads");
            if let Some(key) = own.keys().find(known) {
                let (key, got) = (format!("per_layer_config.{at}"), key.clone());
                let supported = "head_dim, num_key_value_heads";
                return Err(ModelError::Unsupported { key, got, supported });
            }
            let own = ConfigFile { json: own };
            let dim = own.usize("head_dim")?.unwrap_or(spec.head_dim);
            Ok((dim, own.usize("num_key_value_heads")?.unwrap_or(spec.kv_heads)))
        };
        let all = (0..sliding.len()).map(of).collect::<Result<Vec<_>, _>>()?;
        (head_dim, kv_heads) = all[sliding.len() - 1];
        let expected =
            |slides: bool| if slides { (spec.head_dim, spec.kv_heads) } else { (head_dim, kv_heads) };
        if let Some(at) = (0..all.len()).find(|&at| all[at] != expected(sliding[at])) {
            let got = format!("head_dim {} and num_key_value_heads {}", all[at].0, all[at].1);
            let supported = "the same for all blocks of a kind, and those of the model for blocks that slide";
            return Err(ModelError::Unsupported { key: format!("per_layer_config.{at}"), got, supported });
        }
    }
    for (key, size) in [("global_head_dim", head_dim), ("num_global_key_value_heads", kv_heads)] {
        if size == 0 {
            return Err(wrong(key, "0", "a positive integer"));
        }
    }
    Ok(BlockSizes { heads: spec.heads, kv_heads, head_dim, intermediate: spec.intermediate })
}

/// The rope of Gemma 4's blocks of a kind, whose heads have `head_dim` elements.
fn rope_of(r: &Reader<'_>, spec: &Spec, kind: &str, head_dim: usize) -> Result<Rope, ModelError> {
    let defaults = RopeDefaults {
        head_dim,
        max_positions: spec.max_positions,
        original_positions: spec.max_positions,
        theta: if kind == "full_attention" { 1_000_000.0 } else { 10_000.0 },
        partial: None,
    };
    let given = r.config.get("rope_parameters").and_then(|all| all.get(kind)).and_then(Value::as_object);
    let mut map = Map::new();
    if kind == "full_attention" {
        map.insert("rope_type".to_owned(), Value::from("proportional"));
        map.insert("partial_rotary_factor".to_owned(), Value::from(0.25));
    }
    Rope::of(given.unwrap_or(&map), r.config, &defaults)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against values of torch.distributions.
    #[test]
    fn quantiles_are_those_of_the_normal_distribution() {
        for (part, want) in [
            (0.95, 1.644_853_626_951_472_7),
            (0.5, 0.0),
            (0.9, 1.281_551_565_544_600_4),
            (0.001, -3.090_232_306_167_813_5),
            (1.0 - 1e-7, 5.199_337_582_192_81),
        ] {
            assert!((normal_quantile(part) - want).abs() < 1e-8 * (1.0 + want.abs()), "{part}");
        }
    }
}
