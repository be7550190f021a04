//! From text to kernels.

mod opcode;
mod operand;
mod scanner;

use std::collections::BTreeMap;

use crate::fault::ParseError;
use crate::instruction::{Instruction, Operation};
use crate::memory;
use crate::module::{Global, Kernel, Module};
use crate::scalar::Type;
use scanner::{Scanner, Statement};

/// A name that stands for an address: generic, and within its space.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol {
    pub(crate) address: u64,
    pub(crate) generic: u64,
}

/// Names of a scope.
#[derive(Debug, Default)]
struct Scope {
    /// First register, type and number of registers by the beginning of their names; a name without a number is one.
    registers: BTreeMap<String, (u32, Type, Option<u32>)>,
    symbols: BTreeMap<String, Symbol>,
    /// Labels, by the number of the scope that they stand in.
    number: usize,
}

/// A kernel while it is read.
pub(crate) struct Body {
    scopes: Vec<Scope>,
    parents: Vec<Option<usize>>,
    labels: BTreeMap<(usize, String), usize>,
    /// Branches whose labels are to be found: instruction, scope, labels.
    branches: Vec<(usize, usize, Vec<String>, usize)>,
    tables: BTreeMap<(usize, String), Vec<String>>,
    kernel: Kernel,
}

impl Body {
    pub(crate) fn register(&self, name: &str) -> Option<(u32, Type)> {
        let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let (stem, number) = name.split_at(name.len() - digits);
        self.scopes.iter().rev().find_map(|scope| {
            if let Some(&(first, ty, None)) = scope.registers.get(name) {
                return Some((first, ty));
            }
            match scope.registers.get(stem) {
                Some(&(first, ty, Some(count))) => {
                    let number: u32 = number.parse().ok()?;
                    (number < count).then_some((first + number, ty))
                }
                _ => None,
            }
        })
    }

    pub(crate) fn symbol(&self, name: &str) -> Option<Symbol> {
        self.scopes.iter().rev().find_map(|scope| scope.symbols.get(name).copied())
    }

    fn scope(&mut self) -> &mut Scope {
        self.scopes.last_mut().expect("invariant: a body has its own scope")
    }

    fn open(&mut self) {
        let parent = self.scopes.last().map(|scope| scope.number);
        let number = self.parents.len();
        self.parents.push(parent);
        self.scopes.push(Scope { number, ..Scope::default() });
    }

    /// A label as it is seen from a scope.
    fn find<'a, T>(&self, of: &'a BTreeMap<(usize, String), T>, scope: usize, name: &str) -> Option<&'a T> {
        let mut at = Some(scope);
        while let Some(scope) = at {
            if let Some(found) = of.get(&(scope, name.to_owned())) {
                return Some(found);
            }
            at = self.parents[scope];
        }
        None
    }

    /// Puts the places of labels into branches.
    fn resolve(&mut self) -> Result<(), ParseError> {
        for (at, scope, names, line) in std::mem::take(&mut self.branches) {
            let missing = |name: &str| ParseError { line, what: format!("there is no label `{name}`") };
            let place =
                |name: &String| self.find(&self.labels, scope, name).copied().ok_or_else(|| missing(name));
            let operation = match self.kernel.code[at].operation {
                Operation::BranchIndexed { index, .. } => {
                    let table =
                        self.find(&self.tables, scope, &names[0]).ok_or_else(|| missing(&names[0]))?;
                    Operation::BranchIndexed { index, to: table.iter().map(place).collect::<Result<_, _>>()? }
                }
                _ => Operation::Branch { to: place(&names[0])? },
            };
            self.kernel.code[at].operation = operation;
        }
        Ok(())
    }
}

/// A variable: alignment, name, bytes, and what it begins as.
struct Variable {
    alignment: u64,
    name: String,
    bytes: usize,
    /// An array without a size (`name[]`).
    open: bool,
    value: Vec<u8>,
}

fn number(text: &str) -> Option<i64> {
    let text = text.trim();
    let (negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let text = text.trim_end_matches('U');
    let value = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => text.parse().ok()?,
    } as i64;
    Some(if negative { value.wrapping_neg() } else { value })
}

/// `.align 4 .b8 name[24] = {65, 144}`, after the state space.
fn variable(text: &str, line: usize) -> Result<Variable, ParseError> {
    let wrong = || ParseError { line, what: format!("`{text}` is not a variable") };
    let (declared, value) = text.split_once('=').map_or((text, None), |(d, v)| (d, Some(v)));
    let mut alignment = None;
    let mut ty = None;
    let mut lanes = 1;
    let mut words = declared.split_whitespace().peekable();
    let mut name = String::new();
    while let Some(word) = words.next() {
        match word {
            ".align" => {
                let value = words.next().and_then(number).ok_or_else(wrong)?;
                alignment = Some(value as u64);
            }
            ".ptr" | ".global" | ".shared" | ".const" | ".local" | ".attribute(.managed)" => {}
            ".v2" => lanes = 2,
            ".v4" => lanes = 4,
            word if word.starts_with('.') => ty = Type::named(&word[1..]),
            word => name.push_str(word),
        }
    }
    let ty = ty.ok_or_else(wrong)?;
    let (name, sizes) = name.split_once('[').map_or((name.as_str(), ""), |(name, sizes)| (name, sizes));
    let mut elements = lanes;
    let mut open = false;
    for size in sizes.split('[').filter(|size| !size.is_empty()) {
        match size.trim_end_matches(']') {
            "" => open = true,
            size => elements *= number(size).ok_or_else(wrong)? as usize,
        }
    }
    let bytes = if open { 0 } else { elements * ty.bytes() };
    let mut out = vec![0; bytes];
    if let Some(value) = value {
        let values = value.trim().trim_start_matches('{').trim_end_matches('}');
        for (at, value) in values.split(',').map(str::trim).filter(|v| !v.is_empty()).enumerate() {
            let bits = match operand::float(value) {
                Some((bits, _)) => bits,
                None => number(value).ok_or_else(wrong)? as u64,
            };
            let place = out.get_mut(at * ty.bytes()..(at + 1) * ty.bytes()).ok_or_else(wrong)?;
            place.copy_from_slice(&bits.to_le_bytes()[..ty.bytes()]);
        }
    }
    let alignment = alignment.unwrap_or(ty.bytes() as u64);
    Ok(Variable { alignment, name: name.to_owned(), bytes, open, value: out })
}

fn aligned(at: usize, alignment: u64) -> usize {
    at.next_multiple_of(alignment.max(1) as usize)
}

/// Reads a module.
pub(crate) fn module(text: &str, place: &mut dyn FnMut(Global) -> u64) -> Result<Module, ParseError> {
    let mut scanner = Scanner::new(text);
    let mut kernels = BTreeMap::new();
    let mut outer = Scope::default();
    // What every kernel of the module has in shared memory.
    let mut shared = 0;
    let mut dynamic = Vec::new();
    while let Some(word) = scanner.word() {
        let line = scanner.line();
        match word {
            ".version" | ".target" | ".address_size" | ".file" | ".loc" => scanner.skip_line(),
            ".visible" | ".weak" | ".extern" | ".common" => {}
            ".section" => scanner.skip_braces()?,
            ".func" => scanner.skip_braces()?,
            ".alias" | ".pragma" => drop(scanner.until(';')?),
            ".entry" => {
                let kernel = entry(&mut scanner, &outer, shared, &dynamic)?;
                kernels.insert(kernel.name.clone(), kernel);
            }
            ".global" | ".const" => {
                let variable = variable(scanner.until(';')?, line)?;
                let Variable { alignment, name, value, .. } = variable;
                let address = place(Global { name: name.clone(), alignment, bytes: value });
                outer.symbols.insert(name, Symbol { address, generic: address });
            }
            ".shared" => {
                let variable = variable(scanner.until(';')?, line)?;
                if variable.open {
                    dynamic.push((variable.name, variable.alignment));
                } else {
                    shared = aligned(shared, variable.alignment);
                    outer.symbols.insert(variable.name, shared_symbol(shared));
                    shared += variable.bytes;
                }
            }
            word => return Err(ParseError { line, what: format!("`{word}` begins nothing that is known") }),
        }
    }
    Ok(Module { kernels })
}

fn shared_symbol(at: usize) -> Symbol {
    Symbol { address: at as u64, generic: memory::SHARED + at as u64 }
}

/// Reads an entry, after `.entry`.
fn entry(
    scanner: &mut Scanner<'_>,
    outer: &Scope,
    shared: usize,
    dynamic: &[(String, u64)],
) -> Result<Kernel, ParseError> {
    let line = scanner.line();
    let name = scanner.until('(')?.trim().to_owned();
    let mut body = Body {
        scopes: Vec::new(),
        parents: Vec::new(),
        labels: BTreeMap::new(),
        branches: Vec::new(),
        tables: BTreeMap::new(),
        kernel: Kernel { name, parameters: Vec::new(), registers: 0, shared, local: 0, code: Vec::new() },
    };
    body.open();
    body.scope().symbols.clone_from(&outer.symbols);
    let mut end = 0;
    for parameter in scanner.until(')')?.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let declared = parameter.strip_prefix(".param").unwrap_or(parameter);
        let Variable { alignment, name, bytes, .. } = variable(declared, line)?;
        let at = aligned(end, alignment);
        body.kernel.parameters.push((at, bytes));
        let symbol = Symbol { address: at as u64, generic: memory::PARAM + at as u64 };
        body.scope().symbols.insert(name, symbol);
        end = at + bytes;
    }
    // Bounds on threads and registers.
    scanner.until('{')?;
    body.open();
    let mut late = dynamic.to_vec();
    let mut depth = 0;
    loop {
        let line = scanner.line_of_next();
        match scanner.statement()? {
            Statement::Open => {
                depth += 1;
                body.open();
            }
            Statement::Close if depth == 0 => break,
            Statement::Close => {
                depth -= 1;
                body.scopes.pop();
            }
            Statement::Label(label) => {
                let scope = body.scope().number;
                body.labels.insert((scope, label.to_owned()), body.kernel.code.len());
                if let Some(table) = scanner.table()? {
                    let names = table.split(',').map(|name| name.trim().to_owned()).collect();
                    body.tables.insert((scope, label.to_owned()), names);
                }
            }
            Statement::Directive(".reg", text) => registers(&mut body, text, line)?,
            Statement::Directive(".local", text) => {
                let Variable { alignment, name, bytes, .. } = variable(text, line)?;
                let at = aligned(body.kernel.local, alignment);
                let symbol = Symbol { address: at as u64, generic: memory::LOCAL + at as u64 };
                body.scope().symbols.insert(name, symbol);
                body.kernel.local = at + bytes;
            }
            Statement::Directive(".shared", text) => {
                let Variable { alignment, name, bytes, open, .. } = variable(text, line)?;
                if open {
                    late.push((name, alignment));
                } else {
                    let at = aligned(body.kernel.shared, alignment);
                    body.scope().symbols.insert(name, shared_symbol(at));
                    body.kernel.shared = at + bytes;
                }
            }
            Statement::Directive(_, _) => {}
            Statement::Instruction(text) => {
                // What a launch adds begins behind all that is declared, which NVRTC declares first.
                for (name, alignment) in late.drain(..) {
                    body.kernel.shared = aligned(body.kernel.shared, alignment);
                    let symbol = shared_symbol(body.kernel.shared);
                    body.scopes[0].symbols.insert(name, symbol);
                }
                instruction(&mut body, text, line)?;
            }
        }
    }
    body.resolve()?;
    // A kernel that runs off its end ends.
    body.kernel.code.push(Instruction {
        line: scanner.line() as u32,
        guard: None,
        operation: Operation::Exit,
    });
    Ok(body.kernel)
}

/// `.b32 %r<52>` or `.b32 t, u`.
fn registers(body: &mut Body, text: &str, line: usize) -> Result<(), ParseError> {
    let wrong = || ParseError { line, what: format!("`{text}` declares no registers") };
    let (ty, names) = text.trim().split_once(char::is_whitespace).ok_or_else(wrong)?;
    let ty = ty.strip_prefix('.').and_then(Type::named).ok_or_else(wrong)?;
    for name in names.split(',').map(str::trim) {
        let first = body.kernel.registers as u32;
        let (name, count) = match name.split_once('<') {
            Some((stem, count)) => {
                let count = number(count.trim_end_matches('>')).ok_or_else(wrong)? as u32;
                (stem, Some(count))
            }
            None => (name, None),
        };
        body.kernel.registers += count.unwrap_or(1) as usize;
        body.scope().registers.insert(name.to_owned(), (first, ty, count));
    }
    Ok(())
}

fn instruction(body: &mut Body, text: &str, line: usize) -> Result<(), ParseError> {
    let wrong = |what: String| ParseError { line, what };
    let mut text = text.trim();
    let mut guard = None;
    if let Some(rest) = text.strip_prefix('@') {
        let (name, rest) =
            rest.split_once(char::is_whitespace).ok_or_else(|| wrong(format!("`{text}` guards nothing")))?;
        let (name, negated) = name.strip_prefix('!').map_or((name, false), |name| (name, true));
        let (register, _) =
            body.register(name).ok_or_else(|| wrong(format!("there is no register `{name}`")))?;
        guard = Some((register, negated));
        text = rest.trim_start();
    }
    let (opcode, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let operation = match opcode::read(body, opcode, operands) {
        Some(operation) => operation,
        None => Operation::Unknown(text.split_whitespace().collect::<Vec<_>>().join(" ")),
    };
    let scope = body.scope().number;
    match &operation {
        Operation::Branch { .. } => {
            let names = vec![operands.trim().to_owned()];
            body.branches.push((body.kernel.code.len(), scope, names, line));
        }
        Operation::BranchIndexed { .. } => {
            let names = operands.split(',').skip(1).map(|name| name.trim().to_owned()).collect();
            body.branches.push((body.kernel.code.len(), scope, names, line));
        }
        _ => {}
    }
    body.kernel.code.push(Instruction { line: line as u32, guard, operation });
    Ok(())
}
