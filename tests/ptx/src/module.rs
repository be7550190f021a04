//! `Module`: kernels and constants of a text.

use std::collections::BTreeMap;

use crate::fault::ParseError;
use crate::instruction::{Instruction, Operation};
use crate::parse;

/// What a text of PTX holds.
#[derive(Debug)]
pub struct Module {
    pub(crate) kernels: BTreeMap<String, Kernel>,
}

/// A variable of a module, which lies in the device's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Global {
    /// Its name.
    pub name: String,
    /// What its address is a multiple of.
    pub alignment: u64,
    /// What it begins as.
    pub bytes: Vec<u8>,
}

/// An entry.
#[derive(Debug)]
pub struct Kernel {
    pub(crate) name: String,
    /// Offset and bytes of each parameter.
    pub(crate) parameters: Vec<(usize, usize)>,
    pub(crate) registers: usize,
    /// Bytes of shared memory without what a launch adds.
    pub(crate) shared: usize,
    /// Bytes of each thread's own memory.
    pub(crate) local: usize,
    pub(crate) code: Vec<Instruction>,
}

impl Module {
    /// Reads a module. `place` is given each of its variables, and says where it lies.
    ///
    /// # Errors
    /// If the text is no PTX. An instruction that is not known is an error only when it is executed.
    pub fn read(text: &str, place: &mut dyn FnMut(Global) -> u64) -> Result<Self, ParseError> {
        parse::module(text, place)
    }

    /// The kernel of a name.
    #[must_use]
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.get(name)
    }

    /// All kernels, by name.
    pub fn kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.kernels.values()
    }
}

impl Kernel {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of each parameter, in order.
    pub fn parameters(&self) -> impl Iterator<Item = usize> + '_ {
        self.parameters.iter().map(|&(_, bytes)| bytes)
    }

    /// Whether warps meet at barriers in memory (`mbarrier`).
    pub(crate) fn has_barriers_in_memory(&self) -> bool {
        let is_one = |operation: &Operation| {
            matches!(operation, Operation::Arrival { .. } | Operation::CopyBox { .. })
        };
        self.code.iter().any(|instruction| is_one(&instruction.operation))
    }

    /// Instructions that this interpreter does not have.
    pub fn unknown(&self) -> impl Iterator<Item = &str> {
        self.code.iter().filter_map(|instruction| match &instruction.operation {
            Operation::Unknown(text) => Some(text.as_str()),
            _ => None,
        })
    }
}
