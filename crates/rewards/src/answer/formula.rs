//! Evaluation of formulas, exactly where they are rational and by their values at fixed points otherwise.

use std::collections::BTreeSet;

/// A formula.
#[derive(Clone, Debug)]
pub(super) enum Formula {
    /// A whole number.
    Whole(i128),
    /// A decimal number: digits without the point, and how many of them are behind it.
    Decimal(i128, u32),
    /// A variable, a word, or a number too long to compute with.
    Name(String),
    /// π, e or ∞.
    Constant(f64),
    /// A sum.
    Sum(Vec<Formula>),
    /// A product, in the order written.
    Product(Vec<Formula>),
    /// The reciprocal.
    Inverse(Box<Formula>),
    /// Base and exponent.
    Power(Box<Formula>, Box<Formula>),
    /// A hundredth.
    Percent(Box<Formula>),
    /// A function of one argument.
    Function(Function, Box<Formula>),
}

/// A function of one argument.
#[derive(Clone, Copy, Debug)]
pub(super) enum Function {
    Absolute,
    Factorial,
    Floor,
    Ceiling,
    Real(fn(f64) -> f64),
}

/// A point at which formulas are evaluated.
#[derive(Clone, Copy)]
pub(super) struct Point(pub(super) u64);

impl Point {
    /// The value of a variable: between 0.5 and 2.5, of either sign.
    fn of(self, name: &str) -> f64 {
        // FNV-1a, so that values depend on nothing but names.
        let hash = name.bytes().chain(self.0.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let share = (hash >> 11) as f64 / (1_u64 << 53) as f64;
        let value = 0.5 + 2.0 * share;
        if self.0 % 2 == 1 && hash % 2 == 1 { -value } else { value }
    }
}

/// A fraction in lowest terms, its denominator above 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ratio {
    over: i128,
    under: i128,
}

impl Ratio {
    fn new(over: i128, under: i128) -> Option<Self> {
        let (mut a, mut b) = (over.checked_abs()?, under.checked_abs()?);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        let divisor = if under < 0 { -a } else { a };
        (under != 0).then(|| Self { over: over / divisor, under: under / divisor })
    }

    pub(super) fn is_whole(self) -> bool {
        self.under == 1
    }

    /// The number, if it is whole.
    pub(super) fn whole(self) -> Option<i128> {
        self.is_whole().then_some(self.over)
    }

    fn plus(self, other: Self) -> Option<Self> {
        let left = self.over.checked_mul(other.under)?;
        let right = other.over.checked_mul(self.under)?;
        Self::new(left.checked_add(right)?, self.under.checked_mul(other.under)?)
    }

    fn times(self, other: Self) -> Option<Self> {
        Self::new(self.over.checked_mul(other.over)?, self.under.checked_mul(other.under)?)
    }

    fn power(self, exponent: i128) -> Option<Self> {
        let size = u32::try_from(exponent.unsigned_abs()).ok()?;
        let (over, under) = (self.over.checked_pow(size)?, self.under.checked_pow(size)?);
        if exponent < 0 { Self::new(under, over) } else { Self::new(over, under) }
    }
}

impl Formula {
    /// The number that digits with an optional sign and point say.
    pub(super) fn number(text: &str) -> Self {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        match (format!("{whole}{fraction}").parse(), u32::try_from(fraction.len())) {
            (Ok(digits), Ok(0)) if !text.contains('.') => Self::Whole(digits),
            (Ok(digits), Ok(places)) if places <= 30 => Self::Decimal(digits, places),
            _ => Self::Name(text.to_owned()),
        }
    }

    pub(super) fn negated(self) -> Self {
        match self {
            Self::Whole(number) => Self::Whole(-number),
            Self::Decimal(digits, places) => Self::Decimal(-digits, places),
            other => Self::Product(vec![Self::Whole(-1), other]),
        }
    }

    pub(super) fn percent(self) -> Self {
        Self::Percent(Box::new(self))
    }

    /// A decimal number, or a percentage that is one.
    pub(super) fn is_decimal(&self) -> bool {
        match self {
            Self::Decimal(..) => true,
            Self::Percent(inner) => inner.is_decimal(),
            _ => false,
        }
    }

    /// The whole number, or that before a percent sign.
    pub(super) fn whole_or_percent(&self) -> Option<i128> {
        match self {
            Self::Whole(number) => Some(*number),
            Self::Percent(inner) => inner.whole_or_percent(),
            _ => None,
        }
    }

    /// The variables.
    pub(super) fn names(&self) -> BTreeSet<&str> {
        match self {
            Self::Whole(_) | Self::Decimal(..) | Self::Constant(_) => BTreeSet::new(),
            Self::Name(name) => BTreeSet::from([name.as_str()]),
            Self::Sum(parts) | Self::Product(parts) => parts.iter().flat_map(Self::names).collect(),
            Self::Inverse(inner) | Self::Percent(inner) | Self::Function(_, inner) => inner.names(),
            Self::Power(base, exponent) => base.names().into_iter().chain(exponent.names()).collect(),
        }
    }

    /// The word that a name or a product of letters spells.
    pub(super) fn word(&self) -> Option<String> {
        match self {
            Self::Name(name) => Some(name.clone()),
            Self::Constant(value) if *value == std::f64::consts::E => Some("e".to_owned()),
            Self::Product(parts) => parts.iter().map(Self::word).collect(),
            _ => None,
        }
    }

    /// Its value as a fraction, where it is one and not too large.
    pub(super) fn exact(&self) -> Option<Ratio> {
        let whole = |number| Ratio::new(number, 1);
        match self {
            Self::Whole(number) => whole(*number),
            Self::Decimal(digits, places) => Ratio::new(*digits, 10_i128.checked_pow(*places)?),
            Self::Name(_) | Self::Constant(_) => None,
            Self::Sum(parts) => parts.iter().try_fold(whole(0)?, |sum, part| sum.plus(part.exact()?)),
            Self::Product(parts) => {
                parts.iter().try_fold(whole(1)?, |product, part| product.times(part.exact()?))
            }
            Self::Inverse(inner) => inner.exact()?.power(-1),
            Self::Percent(inner) => inner.exact()?.times(Ratio::new(1, 100)?),
            Self::Power(base, exponent) => {
                let exponent = exponent.exact()?;
                exponent.is_whole().then(|| base.exact()?.power(exponent.over))?
            }
            Self::Function(function, inner) => {
                let inner = inner.exact()?;
                match function {
                    Function::Absolute => Ratio::new(inner.over.checked_abs()?, inner.under),
                    Function::Floor => whole(inner.over.div_euclid(inner.under)),
                    Function::Ceiling => whole(-(-inner.over).div_euclid(inner.under)),
                    Function::Factorial if inner.is_whole() && (0..=33).contains(&inner.over) => {
                        whole((1..=inner.over).product())
                    }
                    Function::Factorial | Function::Real(_) => None,
                }
            }
        }
    }

    /// Its value at a point; not a number where it has none.
    pub(super) fn at(&self, point: Point) -> f64 {
        match self {
            Self::Whole(number) => *number as f64,
            Self::Decimal(digits, places) => *digits as f64 / 10_f64.powi(*places as i32),
            Self::Name(name) => point.of(name),
            Self::Constant(value) => *value,
            Self::Sum(parts) => parts.iter().map(|part| part.at(point)).sum(),
            Self::Product(parts) => parts.iter().map(|part| part.at(point)).product(),
            Self::Inverse(inner) => inner.at(point).recip(),
            Self::Percent(inner) => inner.at(point) / 100.0,
            Self::Power(base, exponent) => base.at(point).powf(exponent.at(point)),
            Self::Function(function, inner) => {
                let x = inner.at(point);
                match function {
                    Function::Absolute => x.abs(),
                    Function::Floor => x.floor(),
                    Function::Ceiling => x.ceil(),
                    Function::Factorial if x >= 0.0 && x.fract() == 0.0 && x <= 170.0 => {
                        (1..=x as u32).map(f64::from).product()
                    }
                    Function::Factorial => f64::NAN,
                    Function::Real(function) => function(x),
                }
            }
        }
    }
}
