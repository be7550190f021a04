//! 256 elements in eight groups of 32, each with a scale and a minimum of six bits: what `Q4_K` and `Q5_K` share.

use super::{half_at, nearest, put_half};

/// Elements of a block.
pub(super) const BLOCK: usize = 256;
/// Elements of a group.
pub(super) const GROUP: usize = 32;
/// Groups of a block.
const GROUPS: usize = BLOCK / GROUP;
/// The most that six bits hold.
const SIX_BITS: f32 = 63.0;

/// How scales of a group are tried: the largest code, and where the steps begin and how many there are (a tenth each).
pub(super) struct Search {
    pub(super) most: i32,
    pub(super) first: f32,
    pub(super) steps: i32,
}

/// Codes of a block; its first 16 bytes, scale, minimum and the groups' sixes, are written.
pub(super) fn encode(values: &[f32; BLOCK], bytes: &mut [u8], search: &Search) -> [u8; BLOCK] {
    let mut codes = [0; BLOCK];
    let (mut scales, mut minima) = ([0.0; GROUPS], [0.0; GROUPS]);
    let groups = values.as_chunks::<GROUP>().0;
    for (at, group) in groups.iter().enumerate() {
        let own = codes.as_chunks_mut::<GROUP>().0;
        (scales[at], minima[at]) = fit(group, &mut own[at], search);
    }
    let most =
        |all: &[f32; GROUPS]| all.iter().fold(0.0_f32, |most, &own| if own > most { own } else { most });
    let (scale, minimum) = (most(&scales), most(&minima));
    let by = |most: f32| if most > 0.0 { SIX_BITS / most } else { 0.0 };
    let (by_scale, by_minimum) = (by(scale), by(minimum));
    let six = |value: f32| 63.min(nearest(value) as u8);
    bytes[4..16].fill(0);
    for at in 0..GROUPS {
        let (scale, minimum) = (six(by_scale * scales[at]), six(by_minimum * minima[at]));
        if at < 4 {
            bytes[4 + at] = scale;
            bytes[8 + at] = minimum;
        } else {
            bytes[8 + at] = scale & 15 | (minimum & 15) << 4;
            bytes[at] |= scale >> 4 << 6;
            bytes[4 + at] |= minimum >> 4 << 6;
        }
    }
    put_half(bytes, 0, scale / SIX_BITS);
    put_half(bytes, 2, minimum / SIX_BITS);
    for (at, group) in groups.iter().enumerate() {
        let (scale, minimum) = of_group(bytes, at);
        if scale == 0.0 {
            continue;
        }
        for (code, value) in codes[at * GROUP..].iter_mut().zip(group) {
            *code = nearest((value + minimum) / scale).clamp(0, search.most) as u8;
        }
    }
    codes
}

/// A group's scale and what is taken away from its elements.
pub(super) fn of_group(bytes: &[u8], at: usize) -> (f32, f32) {
    let six = &bytes[4..16];
    let (scale, minimum) = if at < 4 {
        (six[at] & 63, six[at + 4] & 63)
    } else {
        (six[at + 4] & 15 | six[at - 4] >> 6 << 4, six[at + 4] >> 4 | six[at] >> 6 << 4)
    };
    (half_at(bytes, 0) * f32::from(scale), half_at(bytes, 2) * f32::from(minimum))
}

/// The scale and the (negated) minimum of a group whose weighted squares of errors are the least of those tried, and its
/// codes.
fn fit(values: &[f32; GROUP], codes: &mut [u8; GROUP], search: &Search) -> (f32, f32) {
    let squares = values.iter().fold(0.0_f32, |sum, value| sum + value * value);
    let typical = (squares / GROUP as f32).sqrt();
    let weights = values.map(|value| typical + value.abs());
    let (mut low, mut high) = (values[0], values[0]);
    let mut all_weights = weights[0];
    let mut weighted = all_weights * values[0];
    for (&value, &weight) in values.iter().zip(&weights).skip(1) {
        if value < low {
            low = value;
        }
        if value > high {
            high = value;
        }
        all_weights += weight;
        weighted += weight * value;
    }
    if low > 0.0 {
        low = 0.0;
    }
    if high == low {
        codes.fill(0);
        return (0.0, -low);
    }
    let most = search.most as f32;
    let code = |value: f32, by: f32, low: f32| nearest(by * (value - low)).clamp(0, search.most) as u8;
    let error = |codes: &[u8; GROUP], scale: f32, low: f32| {
        let mut sum = 0.0_f32;
        for ((&code, &value), &weight) in codes.iter().zip(values).zip(&weights) {
            let apart = scale * f32::from(code) + low - value;
            sum += weight * (apart * apart);
        }
        sum
    };
    let by = most / (high - low);
    let mut scale = 1.0 / by;
    *codes = values.map(|value| code(value, by, low));
    let mut best = error(codes, scale, low);
    // What is found best changes what is tried next.
    let mut minimum = low;
    for step in 0..=search.steps {
        let by = (search.first + 0.1 * step as f32 + most) / (high - minimum);
        let tried = values.map(|value| code(value, by, minimum));
        let (mut sum, mut sum_squares, mut sum_values) = (0.0_f32, 0.0_f32, 0.0_f32);
        for ((&code, &value), &weight) in tried.iter().zip(values).zip(&weights) {
            let code = f32::from(code);
            sum += weight * code;
            sum_squares += weight * code * code;
            sum_values += weight * code * value;
        }
        let determinant = all_weights * sum_squares - sum * sum;
        if determinant <= 0.0 || determinant.is_nan() {
            continue;
        }
        let mut own_scale = (all_weights * sum_values - weighted * sum) / determinant;
        let mut own_minimum = (sum_squares * weighted - sum * sum_values) / determinant;
        if own_minimum > 0.0 {
            own_minimum = 0.0;
            own_scale = sum_values / sum_squares;
        }
        let own = error(&tried, own_scale, own_minimum);
        if own < best {
            *codes = tried;
            (best, scale, minimum) = (own, own_scale, own_minimum);
        }
    }
    (scale, -minimum)
}
