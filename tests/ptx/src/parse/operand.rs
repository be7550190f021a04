//! Operands.

use super::{Body, number};
use crate::instruction::{Address, LaneMask, Operand, Special};
use crate::space::Space;

/// The operands of an instruction: cut at commas that stand in no bracket.
pub(super) fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '{' | '[' | '(' => depth += 1,
            '}' | ']' | ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    let last = text[start..].trim();
    if !last.is_empty() {
        parts.push(last);
    }
    parts
}

/// The bits of `0f3F800000` or `0d3FF0000000000000`, and how many.
pub(super) fn float(text: &str) -> Option<(u64, u32)> {
    let (negative, text) = text.strip_prefix('-').map_or((false, text), |text| (true, text));
    let (digits, bits) = match text.get(..2)? {
        "0f" | "0F" => (&text[2..], 32),
        "0d" | "0D" => (&text[2..], 64),
        _ => return None,
    };
    let value = u64::from_str_radix(digits, 16).ok()?;
    Some((if negative { value ^ (1 << (bits - 1)) } else { value }, bits))
}

fn special(name: &str) -> Option<Special> {
    let axis = |name: &str| ["x", "y", "z"].iter().position(|axis| *axis == name);
    Some(match name {
        "%laneid" => Special::Lane,
        "%warpid" => Special::Warp,
        "%nwarpid" => Special::Warps,
        "%lanemask_eq" => Special::LaneMask(LaneMask::Equal),
        "%lanemask_lt" => Special::LaneMask(LaneMask::Less),
        "%lanemask_le" => Special::LaneMask(LaneMask::LessOrEqual),
        "%lanemask_gt" => Special::LaneMask(LaneMask::Greater),
        "%lanemask_ge" => Special::LaneMask(LaneMask::GreaterOrEqual),
        "%clock" | "%clock64" | "%globaltimer" | "%clock_hi" | "%globaltimer_lo" => Special::Clock,
        "%dynamic_smem_size" => Special::DynamicShared,
        "%total_smem_size" => Special::TotalShared,
        "%smid" | "%gridid" | "%cluster_ctarank" => Special::Zero,
        _ => {
            let (name, of) = name.split_once('.')?;
            let of = axis(of)?;
            match name {
                "%tid" => Special::Tid(of),
                "%ntid" => Special::Ntid(of),
                "%ctaid" | "%clusterid" => Special::Ctaid(of),
                "%nctaid" | "%nclusterid" => Special::Nctaid(of),
                "%cluster_ctaid" => Special::Zero,
                _ => return None,
            }
        }
    })
}

impl Body {
    /// A value: of a symbol, its address in its space.
    pub(super) fn operand(&self, text: &str) -> Option<Operand> {
        if let Some(name) = text.strip_prefix('!') {
            return Some(Operand::Not(self.register(name)?.0));
        }
        if let Some((register, _)) = self.register(text) {
            return Some(Operand::Register(register));
        }
        if let Some((bits, _)) = float(text) {
            return Some(Operand::Value(bits));
        }
        if let Some(value) = number(text) {
            return Some(Operand::Value(value as u64));
        }
        if text == "WARP_SZ" {
            return Some(Operand::Value(32));
        }
        if let Some(special) = special(text) {
            return Some(Operand::Special(special));
        }
        let (name, offset) = text.split_once('+').map_or((text, 0), |(n, o)| (n, number(o).unwrap_or(0)));
        let symbol = self.symbol(name.trim())?;
        Some(Operand::Value(symbol.address.wrapping_add(offset as u64)))
    }

    /// The register of a result; nothing for `_`.
    pub(super) fn result(&self, text: &str) -> Option<Option<u32>> {
        if text == "_" { Some(None) } else { Some(Some(self.register(text)?.0)) }
    }

    /// `{a, b}` or `a`.
    pub(super) fn vector<'a>(&self, text: &'a str) -> Vec<&'a str> {
        match text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
            Some(inner) => split(inner),
            None => vec![text],
        }
    }

    pub(super) fn results(&self, text: &str) -> Option<Vec<Option<u32>>> {
        self.vector(text).into_iter().map(|name| self.result(name)).collect()
    }

    pub(super) fn all_results(&self, text: &str) -> Option<Vec<u32>> {
        self.results(text)?.into_iter().collect()
    }

    pub(super) fn operands(&self, text: &str) -> Option<Vec<Operand>> {
        self.vector(text).into_iter().map(|name| self.operand(name)).collect()
    }

    /// `[base + offset]` of a space.
    pub(super) fn address(&self, text: &str, space: Space) -> Option<Address> {
        let inner = text.strip_prefix('[')?.strip_suffix(']')?.trim();
        let (base, offset) = match inner.split_once('+') {
            Some((base, offset)) => (base.trim(), number(offset)?),
            None => (inner, 0),
        };
        let base = match self.symbol(base) {
            Some(symbol) if space == Space::Generic => Operand::Value(symbol.generic),
            _ => self.operand(base)?,
        };
        Some(Address { base, offset })
    }
}
