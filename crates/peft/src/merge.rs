//! Folding an adapter into a copy of its base.
//!
//! A merge always starts from the pristine base: `W' = cast(f32(W) + s B A)`, one rounding to the base's dtype. There
//! is no unmerge, so a bf16 base cannot drift (adding and subtracting deltas in bf16 changes most of its weights
//! after a few rounds). With a magnitude (DoRA), `W' = cast(m / |W + s B A| (W + s B A))`.

use std::collections::{BTreeMap, BTreeSet};

use burnish_weight_files::HostTensor;

use crate::{AdapterTensors, Factor, LoraPlan, LoraSite, ModuleKind, PeftError};

/// A base with its adapter folded in: only what differs from the base.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MergedBase {
    /// The changed parameters, by base name, and those that were tied to a changed one.
    pub tensors: BTreeMap<String, HostTensor>,
    /// Parameters that shared storage and no longer do: if there are any, `config.json` must say
    /// `tie_word_embeddings: false`, or the merged weights are lost on the next load.
    pub untied: Vec<String>,
}

/// Folds an adapter into its base. `read` gives a pristine base tensor by name (of a tied one the shared tensor), `None`
/// if the base has none of that name. The base itself is never changed, so an error leaves nothing half merged.
///
/// # Errors
/// As [`merge_site`]; [`PeftError::MissingBase`] if `read` knows no weight of a site.
pub fn merge_adapter<E: From<PeftError>>(
    plan: &LoraPlan,
    adapter: &AdapterTensors,
    mut read: impl FnMut(&str) -> Result<Option<HostTensor>, E>,
) -> Result<MergedBase, E> {
    plan.check_merge()?;
    plan.check_plain_base()?;
    let mut merged = MergedBase::default();
    // Base parameters that trained along take the adapter's values.
    for (name, _) in plan.base_parameters() {
        if let Some(tensor) = adapter.parameters.get(name) {
            merged.tensors.insert(name.to_owned(), tensor.clone());
        }
    }
    for site in &plan.sites {
        let (weight_name, bias_name) = (site.base_weight(), site.base_bias());
        let weight = match adapter.base_weights.get(&weight_name) {
            Some(replaced) => replaced.clone(),
            None => {
                read(&weight_name)?.ok_or_else(|| PeftError::MissingBase { name: weight_name.clone() })?
            }
        };
        let trained_bias = merged.tensors.get(&bias_name).cloned();
        let bias = if trained_bias.is_some() || !site.has_bias { trained_bias } else { read(&bias_name)? };
        for factor in site.factors() {
            let name = site.name(factor);
            if !adapter.parameters.contains_key(name) {
                return Err(PeftError::MissingBase { name: name.to_owned() }.into());
            }
        }
        let done = merge_site(site, &weight, bias.as_ref(), |f| &adapter.parameters[site.name(f)])?;
        merged.tensors.insert(weight_name, done.weight);
        if let Some(bias) = done.bias {
            merged.tensors.insert(bias_name, bias);
        }
    }
    for site in &plan.changes {
        let (weight_name, bias_name) = (site.base_weight(), site.base_bias());
        let missing = |name: &String| PeftError::MissingBase { name: name.clone() };
        let weight = match adapter.base_weights.get(&weight_name) {
            Some(replaced) => replaced.clone(),
            None => read(&weight_name)?.ok_or_else(|| missing(&weight_name))?,
        };
        let bias = if site.has_bias { read(&bias_name)? } else { None };
        let done = site.merge(&weight, bias.as_ref(), |part| adapter.parameters.get(&part.name))?;
        merged.tensors.insert(weight_name, done.weight);
        if let Some(bias) = done.bias {
            merged.tensors.insert(bias_name, bias);
        }
    }
    // What was tied to a changed parameter keeps the base's values, in storage of its own.
    let mut untied = BTreeSet::new();
    for (alias, target) in &plan.ties {
        // Rows that train are rows of both.
        let module = target.strip_suffix(".weight").unwrap_or(target);
        let rows = plan.change(module).is_some() && !plan.parts_from_tied(module);
        if merged.tensors.contains_key(alias) || merged.tensors.contains_key(target) && !rows {
            untied.extend([alias.clone(), target.clone()]);
        }
    }
    for name in &untied {
        if !merged.tensors.contains_key(name) {
            let pristine = read(name)?.ok_or_else(|| PeftError::MissingBase { name: name.clone() })?;
            merged.tensors.insert(name.clone(), pristine);
        }
    }
    merged.untied = untied.into_iter().collect();
    Ok(merged)
}

/// A module's merged tensors, in the base's dtypes.
#[derive(Clone, Debug, PartialEq)]
pub struct Merged {
    /// The weight `[out, in]`.
    pub weight: HostTensor,
    /// The bias `[out]`, if the base has one.
    pub bias: Option<HostTensor>,
}

/// Merges one site. `factor` gives those of its tensors that [it has](LoraSite::factors), `weight` and `bias` are the
/// pristine base's.
///
/// # Errors
/// If a shape is not the plan's, if the result is not finite, or if there is a `lora_bias` and no base bias.
pub fn merge_site<'a>(
    site: &LoraSite,
    weight: &HostTensor,
    bias: Option<&HostTensor>,
    factor: impl Fn(Factor) -> &'a HostTensor,
) -> Result<Merged, PeftError> {
    let (a, b) = (factor(Factor::A), factor(Factor::B));
    let shape = match site.kind {
        ModuleKind::Experts(count) | ModuleKind::ExpertsTurned(count) => vec![count, site.out, site.input],
        _ => vec![site.out, site.input],
    };
    expect_shape(&site.base_weight(), weight, &shape)?;
    expect_shape(&site.a_name, a, &site.shape(Factor::A))?;
    expect_shape(&site.b_name, b, &site.shape(Factor::B))?;
    let mut merged = weight.to_f32();
    let (a, b) = (a.to_f32(), b.to_f32());
    match site.kind {
        // Row o of the delta is s * sum_k B[o, k] A[k, :].
        ModuleKind::Linear | ModuleKind::Head | ModuleKind::Parameter => {
            add_product(&mut merged, &b, &a, site.input, site.scale as f32)
        }
        // Each expert's rows of A, and its columns of B.
        ModuleKind::Experts(count) => {
            let (matrix, rows) = (site.out * site.input, site.rank * site.input);
            for expert in 0..count {
                let own: Vec<f32> = b.iter().skip(expert).step_by(count).copied().collect();
                let of_weight = &mut merged[expert * matrix..(expert + 1) * matrix];
                let a = &a[expert * rows..(expert + 1) * rows];
                add_product(of_weight, &own, a, site.input, site.scale as f32);
            }
        }
        // The same, turned: row o is s * sum_k A[k, o] B[:, k]^T.
        ModuleKind::ExpertsTurned(count) => {
            let (matrix, rows) = (site.out * site.input, site.rank * site.out);
            for expert in 0..count {
                let own: Vec<f32> = b.iter().skip(expert).step_by(count).copied().collect();
                let of_weight = &mut merged[expert * matrix..(expert + 1) * matrix];
                let (a_t, b_t) =
                    (transpose(&a[expert * rows..(expert + 1) * rows], site.out), transpose(&own, site.rank));
                add_product(of_weight, &a_t, &b_t, site.input, site.scale as f32);
            }
        }
        // delta = (B A)^T, so row v is s * sum_k A[k, v] B[:, k]^T.
        ModuleKind::Embedding => {
            let (a_t, b_t) = (transpose(&a, site.out), transpose(&b, site.rank));
            add_product(&mut merged, &a_t, &b_t, site.input, site.scale as f32);
        }
    }
    if let Some(name) = &site.magnitude_name {
        let magnitude = factor(Factor::Magnitude);
        expect_shape(name, magnitude, &site.shape(Factor::Magnitude))?;
        scale_to(&mut merged, &magnitude.to_f32(), site);
    }
    let bias = merge_bias(site, bias, &factor)?;
    if merged.iter().any(|x| !x.is_finite()) {
        return Err(PeftError::NotFinite { module: site.module.clone() });
    }
    let weight = HostTensor::from_f32(&merged, &weight.shape, weight.dtype)?;
    // A cast may overflow where f32 did not (f16).
    if weight.to_f32().iter().any(|x| !x.is_finite()) {
        return Err(PeftError::NotFinite { module: site.module.clone() });
    }
    Ok(Merged { weight, bias })
}

fn merge_bias<'a>(
    site: &LoraSite,
    bias: Option<&HostTensor>,
    factor: &impl Fn(Factor) -> &'a HostTensor,
) -> Result<Option<HostTensor>, PeftError> {
    if !site.has_bias {
        return Ok(bias.cloned());
    }
    let Some(bias) = bias else { return Err(PeftError::NoBaseBias { module: site.module.clone() }) };
    let delta = factor(Factor::BBias);
    expect_shape(site.name(Factor::BBias), delta, &site.shape(Factor::BBias))?;
    expect_shape(&site.base_bias(), bias, &[site.out])?;
    let sum: Vec<f32> =
        bias.to_f32().iter().zip(delta.to_f32()).map(|(x, d)| x + site.scale as f32 * d).collect();
    if sum.iter().any(|x| !x.is_finite()) {
        return Err(PeftError::NotFinite { module: site.module.clone() });
    }
    Ok(Some(HostTensor::from_f32(&sum, &bias.shape, bias.dtype)?))
}

/// `out += s * left @ right` with `left: [rows, k]`, `right: [k, cols]`, the product summed before it is scaled.
fn add_product(out: &mut [f32], left: &[f32], right: &[f32], cols: usize, s: f32) {
    let k = right.len() / cols.max(1);
    let mut delta = vec![0.0_f32; cols];
    for (row, factors) in out.chunks_exact_mut(cols.max(1)).zip(left.chunks_exact(k.max(1))) {
        delta.fill(0.0);
        for (&f, from) in factors.iter().zip(right.chunks_exact(cols)) {
            for (d, &x) in delta.iter_mut().zip(from) {
                *d += f * x;
            }
        }
        for (w, d) in row.iter_mut().zip(&delta) {
            *w += s * d;
        }
    }
}

/// Scales the rows (of an embedding the columns) to the magnitudes.
fn scale_to(merged: &mut [f32], magnitude: &[f32], site: &LoraSite) {
    let width = site.input.max(1);
    let square = |x: f32| f64::from(x) * f64::from(x);
    if site.kind == ModuleKind::Embedding {
        let mut norms = vec![0.0_f64; width];
        for row in merged.chunks_exact(width) {
            norms.iter_mut().zip(row).for_each(|(n, &x)| *n += square(x));
        }
        let gains: Vec<f32> = magnitude.iter().zip(&norms).map(|(&m, n)| gain(m, n.sqrt())).collect();
        for row in merged.chunks_exact_mut(width) {
            row.iter_mut().zip(&gains).for_each(|(x, g)| *x *= g);
        }
        return;
    }
    for (row, &m) in merged.chunks_exact_mut(width).zip(magnitude) {
        let norm = row.iter().map(|&x| square(x)).sum::<f64>().sqrt();
        let gain = gain(m, norm);
        row.iter_mut().for_each(|x| *x *= gain);
    }
}

/// A row of zeros stays zero.
fn gain(magnitude: f32, norm: f64) -> f32 {
    if norm == 0.0 { 0.0 } else { (f64::from(magnitude) / norm) as f32 }
}

/// `[rows, cols]` to `[cols, rows]`.
fn transpose(values: &[f32], cols: usize) -> Vec<f32> {
    let rows = values.len() / cols.max(1);
    (0..values.len()).map(|i| values[(i % rows) * cols + i / rows]).collect()
}

pub(crate) fn expect_shape(name: &str, tensor: &HostTensor, expected: &[usize]) -> Result<(), PeftError> {
    if tensor.shape == expected {
        return Ok(());
    }
    Err(PeftError::Shape { name: name.to_owned(), expected: expected.to_vec(), got: tensor.shape.clone() })
}
