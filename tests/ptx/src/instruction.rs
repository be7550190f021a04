//! Instructions, read.

use crate::scalar::Type;
use crate::space::Space;
use crate::warpgroup::WarpgroupProduct;

/// The number of a register of a kernel.
pub(crate) type Register = u32;

/// A register that the hardware fills in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Tid(usize),
    Ntid(usize),
    Ctaid(usize),
    Nctaid(usize),
    Lane,
    Warp,
    Warps,
    LaneMask(LaneMask),
    Clock,
    DynamicShared,
    TotalShared,
    Zero,
}

/// Which lanes a mask has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneMask {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Operand {
    Register(Register),
    /// `!%p`.
    Not(Register),
    Value(u64),
    Special(Special),
}

/// A place in memory: a base and a number of bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Address {
    pub(crate) base: Operand,
    pub(crate) offset: i64,
}

/// How a result that does not fit its type is rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Rounding {
    #[default]
    Nearest,
    /// Of halves away from 0 (`.rna`).
    NearestAway,
    Zero,
    Down,
    Up,
}

/// How a float operation treats what it takes and gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mode {
    pub(crate) rounding: Rounding,
    /// Subnormal numbers are 0.
    pub(crate) flush: bool,
    /// Results are from 0 to 1.
    pub(crate) saturate: bool,
    /// A result is NaN if an operand is (`min`, `max`).
    pub(crate) nan: bool,
    /// Negative results are 0 (`fma.relu`).
    pub(crate) relu: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unary {
    Move,
    Absolute,
    Negate,
    Not,
    LogicalNot,
    Reverse,
    LeadingZeros,
    Ones,
    HighestBit { shift: bool },
    Reciprocal,
    Root,
    ReciprocalRoot,
    PowerOfTwo,
    LogarithmOfTwo,
    Sine,
    Cosine,
    Tanh,
    TestInfinite,
    TestNotANumber,
    TestFinite,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    Add,
    Subtract,
    /// The lower half of a whole product.
    Multiply,
    MultiplyHigh,
    MultiplyWide,
    Divide,
    Remainder,
    Minimum,
    Maximum,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
    CopySign,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ternary {
    MultiplyAdd,
    MultiplyAddHigh,
    MultiplyAddWide,
    Select,
    Logic(u8),
    Permute,
    FunnelLeft { wrap: bool },
    FunnelRight { wrap: bool },
    ExtractBits,
    AbsoluteDifference,
    DotBytes { signed: [bool; 2] },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    /// The same, and true where an operand is NaN.
    EqualOrUnordered,
    NotEqualOrUnordered,
    LessOrUnordered,
    LessOrEqualOrUnordered,
    GreaterOrUnordered,
    GreaterOrEqualOrUnordered,
    Ordered,
    Unordered,
}

/// How a comparison's result meets a predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Join {
    And,
    Or,
    Xor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    All,
    Any,
    Uniform,
    Ballot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atomic {
    Add,
    And,
    Or,
    Xor,
    Minimum,
    Maximum,
    Exchange,
    CompareAndSwap,
    Increment,
    Decrement,
}

/// What is done to a barrier in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    Begin,
    End,
    Arrive,
    ArriveAnnouncing,
    Announce,
    Came,
    /// Whether a phase is over. With `waits` a warp that finds it not over lets the others go on.
    Test {
        waits: bool,
    },
}

/// Rows or columns that lie one after the other in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    Row,
    Column,
}

/// Which of the three matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    A,
    B,
    C,
}

/// `D = A B + C` of a warp.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Product {
    /// `[m, n, k]`.
    pub(crate) shape: [usize; 3],
    pub(crate) a_type: Type,
    pub(crate) b_type: Type,
    pub(crate) c_type: Type,
    pub(crate) d_type: Type,
    /// Whether the fragments are in the ISA's order (`mma`) or in that of this interpreter (`wmma`).
    pub(crate) stated: bool,
    pub(crate) d: Vec<Register>,
    pub(crate) a: Vec<Operand>,
    pub(crate) b: Vec<Operand>,
    pub(crate) c: Vec<Operand>,
}

/// A fragment on its way from or to memory.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fragment {
    /// Rows and columns.
    pub(crate) size: [usize; 2],
    pub(crate) ty: Type,
    pub(crate) layout: Layout,
    pub(crate) space: Space,
    pub(crate) at: Address,
    /// Elements from one row (or column) to the next.
    pub(crate) stride: Option<Operand>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operation {
    Nothing,
    Unary {
        with: Unary,
        ty: Type,
        mode: Mode,
        to: Register,
        a: Operand,
    },
    Binary {
        with: Binary,
        ty: Type,
        mode: Mode,
        to: Register,
        a: Operand,
        b: Operand,
    },
    Ternary {
        with: Ternary,
        ty: Type,
        mode: Mode,
        to: Register,
        a: Operand,
        b: Operand,
        c: Operand,
    },
    InsertBits {
        ty: Type,
        to: Register,
        from: Operand,
        into: Operand,
        at: Operand,
        bits: Operand,
    },
    Compare {
        with: Comparison,
        ty: Type,
        flush: bool,
        /// Results, the second one the opposite (or the upper half's of a pair).
        to: [Option<Register>; 2],
        a: Operand,
        b: Operand,
        join: Option<(Join, Operand)>,
    },
    /// A comparison that gives a number: `set`.
    Set {
        with: Comparison,
        to_type: Type,
        ty: Type,
        flush: bool,
        to: Register,
        a: Operand,
        b: Operand,
    },
    Convert {
        to_type: Type,
        from_type: Type,
        whole: bool,
        mode: Mode,
        to: Register,
        a: Operand,
    },
    /// Two numbers into the halves of a register, the first into the upper one.
    ConvertPair {
        to_type: Type,
        mode: Mode,
        to: Register,
        upper: Operand,
        lower: Operand,
    },
    Pack {
        bits: u32,
        to: Register,
        parts: Vec<Operand>,
    },
    Unpack {
        bits: u32,
        to: Vec<Option<Register>>,
        a: Operand,
    },
    Load {
        space: Space,
        ty: Type,
        to: Vec<Option<Register>>,
        at: Address,
    },
    Store {
        space: Space,
        ty: Type,
        from: Vec<Operand>,
        at: Address,
    },
    /// An address of another space as a generic one, or back.
    Generic {
        space: Space,
        back: bool,
        to: Register,
        a: Operand,
    },
    Branch {
        to: usize,
    },
    BranchIndexed {
        index: Operand,
        to: Vec<usize>,
    },
    Exit,
    Barrier,
    Trap,
    Shuffle {
        how: Shuffle,
        to: Register,
        within: Option<Register>,
        a: Operand,
        b: Operand,
        c: Operand,
    },
    Vote {
        how: Vote,
        to: Register,
        a: Operand,
    },
    ActiveMask {
        to: Register,
    },
    /// A sum, or another whole number, of all lanes of the mask.
    Reduce {
        with: Binary,
        ty: Type,
        to: Register,
        a: Operand,
    },
    ElectOne {
        to: Option<Register>,
        chosen: Register,
    },
    Atomic {
        how: Atomic,
        space: Space,
        ty: Type,
        to: Option<Register>,
        at: Address,
        a: Vec<Operand>,
        b: Option<Operand>,
        flush: bool,
    },
    AsyncCopy {
        to: Address,
        from: Address,
        bytes: usize,
        taken: Option<Operand>,
    },
    /// `mbarrier`.
    Arrival {
        how: Arrival,
        to: Option<Register>,
        at: Address,
        value: Option<Operand>,
    },
    /// A box of a tensor into shared memory, whose bytes a barrier counts.
    CopyBox {
        to: Address,
        map: Operand,
        corner: Vec<Operand>,
        barrier: Address,
    },
    LoadMatrices {
        transposed: bool,
        to: Vec<Register>,
        at: Address,
    },
    StoreMatrices {
        transposed: bool,
        from: Vec<Operand>,
        at: Address,
    },
    LoadFragment {
        to: Vec<Register>,
        fragment: Box<Fragment>,
    },
    StoreFragment {
        from: Vec<Operand>,
        fragment: Box<Fragment>,
    },
    Product(Box<Product>),
    WarpgroupProduct(Box<WarpgroupProduct>),
    /// The products since the last one are a group.
    WarpgroupCommit,
    /// All groups but the last so many are computed.
    WarpgroupWait {
        but: usize,
    },
    Unknown(String),
}

/// One instruction of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Instruction {
    /// Its line in the module, from 1.
    pub(crate) line: u32,
    /// The predicate that a lane needs, and whether it has to be false.
    pub(crate) guard: Option<(Register, bool)>,
    pub(crate) operation: Operation,
}
