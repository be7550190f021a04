//! Types of values.

/// The type of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Pred,
    B8,
    U8,
    S8,
    B16,
    U16,
    S16,
    F16,
    Bf16,
    B32,
    U32,
    S32,
    F32,
    F16x2,
    Bf16x2,
    Tf32,
    B64,
    U64,
    S64,
    F64,
    B128,
}

impl Type {
    /// By its name, without the point.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "pred" => Self::Pred,
            "b8" => Self::B8,
            "u8" => Self::U8,
            "s8" => Self::S8,
            "b16" => Self::B16,
            "u16" => Self::U16,
            "s16" => Self::S16,
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "b32" => Self::B32,
            "u32" => Self::U32,
            "s32" => Self::S32,
            "f32" => Self::F32,
            "f16x2" => Self::F16x2,
            "bf16x2" => Self::Bf16x2,
            "tf32" => Self::Tf32,
            "b64" => Self::B64,
            "u64" => Self::U64,
            "s64" => Self::S64,
            "f64" => Self::F64,
            "b128" => Self::B128,
            _ => return None,
        })
    }

    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::Pred | Self::B8 | Self::U8 | Self::S8 => 1,
            Self::B16 | Self::U16 | Self::S16 | Self::F16 | Self::Bf16 => 2,
            Self::B32 | Self::U32 | Self::S32 | Self::F32 | Self::F16x2 | Self::Bf16x2 | Self::Tf32 => 4,
            Self::B64 | Self::U64 | Self::S64 | Self::F64 => 8,
            Self::B128 => 16,
        }
    }

    /// Bits of a value of the type.
    pub(crate) const fn mask(self) -> u64 {
        match self {
            Self::Pred => 1,
            _ => match self.bytes() {
                1 => 0xff,
                2 => 0xffff,
                4 => 0xffff_ffff,
                _ => u64::MAX,
            },
        }
    }

    pub(crate) const fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    pub(crate) const fn is_float(self) -> bool {
        matches!(
            self,
            Self::F16 | Self::Bf16 | Self::F32 | Self::F64 | Self::F16x2 | Self::Bf16x2 | Self::Tf32
        )
    }

    /// A value of the type as a number of 64 bits, with its sign.
    pub(crate) const fn widen(self, value: u64) -> u64 {
        match self {
            Self::S8 => value as u8 as i8 as i64 as u64,
            Self::S16 => value as u16 as i16 as i64 as u64,
            Self::S32 => value as u32 as i32 as i64 as u64,
            _ => value & self.mask(),
        }
    }
}
