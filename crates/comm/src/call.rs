//! The fingerprint of a call: what each rank tells the others before it sends anything.

use std::fmt;

use burnish_core::Dtype;

use crate::Reduction;

/// A communication operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op {
    /// Every rank gets the reduction of all.
    AllReduce,
    /// Rank r gets part r of the reduction.
    ReduceScatter,
    /// Every rank gets every part.
    AllGather,
    /// Rank r gets part r of every rank.
    AllToAll,
    /// Every rank gets the root's.
    Broadcast,
    /// The root gets every part.
    Gather,
    /// To one rank.
    Send,
    /// From one rank.
    Recv,
    /// Nobody goes on before all are there.
    Barrier,
}

impl Op {
    pub(crate) const ALL: [Self; 9] = [
        Self::AllReduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::AllToAll,
        Self::Broadcast,
        Self::Gather,
        Self::Send,
        Self::Recv,
        Self::Barrier,
    ];

    /// Whether two ranks take part, not the whole group.
    #[must_use]
    pub const fn is_pairwise(self) -> bool {
        matches!(self, Self::Send | Self::Recv)
    }

    /// The name in messages and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::AllToAll => "all_to_all",
            Self::Broadcast => "broadcast",
            Self::Gather => "gather",
            Self::Send => "send",
            Self::Recv => "recv",
            Self::Barrier => "barrier",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Longest axis and channel names, in bytes, that a fingerprint shows; longer ones are cut but compared whole.
pub(crate) const SHORT: usize = 23;
/// Longest `what`, in bytes, that a fingerprint shows.
pub(crate) const LONG: usize = 119;

/// The fingerprint of one call. All ranks of the group must make the same call, in the same order on each channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The operation.
    pub op: Op,
    /// The reduction, for operations that reduce.
    pub reduction: Option<Reduction>,
    /// The element type.
    pub dtype: Dtype,
    /// The operation's full size: the sum of the counts; for [`Op::AllReduce`] and [`Op::Broadcast`] the bucket's
    /// elements; for [`Op::AllToAll`] what this rank sends (ranks may differ).
    pub elements: usize,
    /// A hash of the counts.
    pub counts: u64,
    /// The root, or the other rank of a pair, counted in the group.
    pub root: Option<usize>,
    /// The mesh axis of the group (shown up to 23 bytes).
    pub axis: String,
    /// The channel (shown up to 23 bytes).
    pub channel: String,
    /// How many calls of the group (of the pair, for send and recv) came before on this channel.
    pub sequence: u64,
    /// The parameter, unit or bucket (shown up to 119 bytes).
    pub what: String,
    /// A hash of the whole names.
    pub names: u64,
}

/// The first field in which two calls differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// The operation.
    Op,
    /// The reduction.
    Reduction,
    /// The element type.
    Dtype,
    /// The number of elements.
    Elements,
    /// How the elements are dealt to the ranks.
    Counts,
    /// The root.
    Root,
    /// The axis.
    Axis,
    /// The position in the order of calls.
    Sequence,
    /// The parameter, unit or bucket.
    What,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Op => "operation",
            Self::Reduction => "reduction",
            Self::Dtype => "dtype",
            Self::Elements => "number of elements",
            Self::Counts => "counts per rank",
            Self::Root => "root",
            Self::Axis => "axis",
            Self::Sequence => "sequence number",
            Self::What => "name",
        })
    }
}

impl Call {
    /// A call without operands.
    #[must_use]
    pub fn new(op: Op, dtype: Dtype, axis: &str, channel: &str, what: &str) -> Self {
        Self {
            op,
            reduction: None,
            dtype,
            elements: 0,
            counts: 0,
            root: None,
            names: hash(&[axis.as_bytes(), channel.as_bytes(), what.as_bytes()]),
            axis: cut(axis, SHORT),
            channel: cut(channel, SHORT),
            sequence: 0,
            what: cut(what, LONG),
        }
    }

    /// The first field in which another rank's call differs from this one; `None` if the two fit together.
    #[must_use]
    pub fn difference(&self, theirs: &Self) -> Option<Difference> {
        let pair =
            (self.op == Op::Send && theirs.op == Op::Recv) || (self.op == Op::Recv && theirs.op == Op::Send);
        let each_its_own = self.op == Op::AllToAll;
        let checks = [
            (pair || (self.op == theirs.op && !self.op.is_pairwise()), Difference::Op),
            (self.reduction == theirs.reduction, Difference::Reduction),
            (self.dtype == theirs.dtype, Difference::Dtype),
            (each_its_own || self.elements == theirs.elements, Difference::Elements),
            (each_its_own || self.counts == theirs.counts, Difference::Counts),
            (pair || self.root == theirs.root, Difference::Root),
            (self.axis == theirs.axis, Difference::Axis),
            (self.what == theirs.what, Difference::What),
            (self.sequence == theirs.sequence, Difference::Sequence),
            (self.names == theirs.names, Difference::What),
        ];
        checks.into_iter().find(|(same, _)| !same).map(|(_, difference)| difference)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(`{}`", self.op, self.what)?;
        if self.op != Op::Barrier {
            write!(f, ", {} x {}", self.elements, self.dtype)?;
        }
        if let Some(reduction) = self.reduction {
            write!(f, ", {reduction}")?;
        }
        match (self.op, self.root) {
            (Op::Send, Some(to)) => write!(f, ", to member {to}")?,
            (Op::Recv, Some(from)) => write!(f, ", from member {from}")?,
            (_, Some(root)) => write!(f, ", root {root}")?,
            _ => {}
        }
        write!(f, ") no. {} on axis `{}`", self.sequence, self.axis)?;
        if !self.channel.is_empty() {
            write!(f, ", channel `{}`", self.channel)?;
        }
        Ok(())
    }
}

/// FNV-1a over byte strings, each followed by its length: equal on all machines.
pub(crate) fn hash(strings: &[&[u8]]) -> u64 {
    let mut state = 0xcbf2_9ce4_8422_2325_u64;
    for string in strings {
        for &byte in string.iter().chain(&(string.len() as u64).to_le_bytes()) {
            state = (state ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    state
}

pub(crate) fn hash_counts(counts: &[usize]) -> u64 {
    let bytes: Vec<u8> = counts.iter().flat_map(|&count| (count as u64).to_le_bytes()).collect();
    hash(&[&bytes])
}

fn cut(text: &str, most: usize) -> String {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
