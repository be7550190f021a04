//! Opcodes with their modifiers.

use super::Body;
use super::operand::split;
use crate::instruction::{
    Arrival, Atomic, Binary, Comparison, Fragment, Join, Layout, Mode, Operand, Operation, Part, Product,
    Rounding, Shuffle, Ternary, Unary, Vote,
};
use crate::scalar::Type;
use crate::space::Space;
use crate::warpgroup::{DEPTH, Left, WarpgroupProduct};

/// The words of an opcode.
struct Words<'a>(Vec<&'a str>);

impl<'a> Words<'a> {
    fn has(&self, word: &str) -> bool {
        self.0.contains(&word)
    }

    fn types(&self) -> Vec<Type> {
        self.0.iter().filter_map(|word| Type::named(word)).collect()
    }

    /// The last type.
    fn ty(&self) -> Option<Type> {
        self.types().last().copied()
    }

    fn space(&self) -> Space {
        let of = |word: &&str| match *word {
            "global" | "const" => Some(Space::Global),
            "param" => Some(Space::Param),
            "local" => Some(Space::Local),
            word if word.starts_with("shared") => Some(Space::Shared),
            _ => None,
        };
        self.0.iter().find_map(of).unwrap_or(Space::Generic)
    }

    fn mode(&self) -> Mode {
        let rounding = self.0.iter().find_map(|word| {
            Some(match *word {
                "rn" | "rni" => Rounding::Nearest,
                "rna" => Rounding::NearestAway,
                "rz" | "rzi" => Rounding::Zero,
                "rm" | "rmi" => Rounding::Down,
                "rp" | "rpi" => Rounding::Up,
                _ => return None,
            })
        });
        Mode {
            rounding: rounding.unwrap_or_default(),
            flush: self.has("ftz"),
            saturate: self.has("sat"),
            nan: self.has("NaN"),
            relu: self.has("relu"),
        }
    }

    fn comparison(&self) -> Option<Comparison> {
        self.0.iter().find_map(|word| {
            Some(match *word {
                "eq" => Comparison::Equal,
                "ne" => Comparison::NotEqual,
                "lt" | "lo" => Comparison::Less,
                "le" | "ls" => Comparison::LessOrEqual,
                "gt" | "hi" => Comparison::Greater,
                "ge" | "hs" => Comparison::GreaterOrEqual,
                "equ" => Comparison::EqualOrUnordered,
                "neu" => Comparison::NotEqualOrUnordered,
                "ltu" => Comparison::LessOrUnordered,
                "leu" => Comparison::LessOrEqualOrUnordered,
                "gtu" => Comparison::GreaterOrUnordered,
                "geu" => Comparison::GreaterOrEqualOrUnordered,
                "num" => Comparison::Ordered,
                "nan" => Comparison::Unordered,
                _ => return None,
            })
        })
    }
}

/// `m16n8k16`.
fn shape(words: &Words<'_>) -> Option<[usize; 3]> {
    words.0.iter().find_map(|word| {
        let (m, rest) = word.strip_prefix('m')?.split_once('n')?;
        let (n, k) = rest.split_once('k')?;
        Some([m.parse().ok()?, n.parse().ok()?, k.parse().ok()?])
    })
}

/// The operation that the words say, if it is known.
pub(super) fn read(body: &Body, opcode: &str, operands: &str) -> Option<Operation> {
    let mut words = opcode.split('.');
    let head = words.next()?;
    let words = Words(words.collect());
    let parts = split(operands);
    let part = |at: usize| parts.get(at).copied();
    let register = |at: usize| Some(body.register(part(at)?)?.0);
    let operand = |at: usize| body.operand(part(at)?);
    let mode = words.mode();
    let unary = |with| {
        let (ty, to, a) = (words.ty()?, register(0)?, operand(1)?);
        Some(Operation::Unary { with, ty, mode, to, a })
    };
    let binary = |with| {
        let (ty, to, a, b) = (words.ty()?, register(0)?, operand(1)?, operand(2)?);
        Some(Operation::Binary { with, ty, mode, to, a, b })
    };
    let ternary = |with| {
        let (ty, to, a) = (words.ty()?, register(0)?, operand(1)?);
        Some(Operation::Ternary { with, ty, mode, to, a, b: operand(2)?, c: operand(3)? })
    };
    if words.has("cc") {
        return None;
    }
    match head {
        "mov" => moved(body, &words, &parts),
        "ld" | "ldu" | "st" => memory(body, head, &words, &parts),
        "add" => binary(Binary::Add),
        "sub" => binary(Binary::Subtract),
        "mul" if words.has("hi") => binary(Binary::MultiplyHigh),
        "mul" if words.has("wide") => binary(Binary::MultiplyWide),
        "mul" => binary(Binary::Multiply),
        "div" => binary(Binary::Divide),
        "rem" => binary(Binary::Remainder),
        "min" if parts.len() == 3 => binary(Binary::Minimum),
        "max" if parts.len() == 3 => binary(Binary::Maximum),
        "and" => binary(Binary::And),
        "or" => binary(Binary::Or),
        "xor" => binary(Binary::Xor),
        "shl" => binary(Binary::ShiftLeft),
        "shr" => binary(Binary::ShiftRight),
        "copysign" => binary(Binary::CopySign),
        "mad" if words.has("hi") => ternary(Ternary::MultiplyAddHigh),
        "mad" if words.has("wide") => ternary(Ternary::MultiplyAddWide),
        "mad" | "fma" => ternary(Ternary::MultiplyAdd),
        "selp" => ternary(Ternary::Select),
        "prmt" if words.0 == ["b32"] => ternary(Ternary::Permute),
        "bfe" => ternary(Ternary::ExtractBits),
        "sad" => ternary(Ternary::AbsoluteDifference),
        "dp4a" => {
            let types = words.types();
            let signed = [types.first()?.is_signed(), types.get(1)?.is_signed()];
            ternary(Ternary::DotBytes { signed })
        }
        "shf" => {
            let wrap = words.has("wrap");
            ternary(if words.has("l") { Ternary::FunnelLeft { wrap } } else { Ternary::FunnelRight { wrap } })
        }
        "lop3" => {
            let Operand::Value(table) = operand(4)? else { return None };
            ternary(Ternary::Logic(table as u8))
        }
        "bfi" => {
            let (ty, to) = (words.ty()?, register(0)?);
            let (from, into, at, bits) = (operand(1)?, operand(2)?, operand(3)?, operand(4)?);
            Some(Operation::InsertBits { ty, to, from, into, at, bits })
        }
        "abs" => unary(Unary::Absolute),
        "neg" => unary(Unary::Negate),
        "not" => unary(Unary::Not),
        "cnot" => unary(Unary::LogicalNot),
        "brev" => unary(Unary::Reverse),
        "clz" => unary(Unary::LeadingZeros),
        "popc" => unary(Unary::Ones),
        "bfind" => unary(Unary::HighestBit { shift: words.has("shiftamt") }),
        "rcp" => unary(Unary::Reciprocal),
        "sqrt" => unary(Unary::Root),
        "rsqrt" => unary(Unary::ReciprocalRoot),
        "ex2" => unary(Unary::PowerOfTwo),
        "lg2" => unary(Unary::LogarithmOfTwo),
        "sin" => unary(Unary::Sine),
        "cos" => unary(Unary::Cosine),
        "tanh" => unary(Unary::Tanh),
        "testp" if words.has("infinite") => unary(Unary::TestInfinite),
        "testp" if words.has("notanumber") => unary(Unary::TestNotANumber),
        "testp" if words.has("finite") => unary(Unary::TestFinite),
        "setp" => compared(body, &words, &parts),
        "set" => {
            let types = words.types();
            let (to_type, ty) = (*types.first()?, *types.get(1)?);
            let with = words.comparison()?;
            let (to, a, b) = (register(0)?, operand(1)?, operand(2)?);
            Some(Operation::Set { with, to_type, ty, flush: mode.flush, to, a, b })
        }
        "cvt" => converted(body, &words, &parts),
        "cvta" => {
            let (space, back) = (words.space(), words.has("to"));
            Some(Operation::Generic { space, back, to: register(0)?, a: operand(1)? })
        }
        "bra" => Some(Operation::Branch { to: 0 }),
        "brx" => Some(Operation::BranchIndexed { index: operand(0)?, to: Vec::new() }),
        "ret" | "exit" => Some(Operation::Exit),
        "trap" => Some(Operation::Trap),
        "bar" | "barrier" if words.has("warp") => Some(Operation::Nothing),
        "bar" | "barrier" if words.has("cluster") => None,
        "bar" | "barrier" if words.has("sync") && parts.len() == 1 => Some(Operation::Barrier),
        "membar" | "fence" | "setmaxnreg" | "prefetch" | "prefetchu" | "nanosleep" | "discard"
        | "griddepcontrol" => Some(Operation::Nothing),
        "shfl" => shuffled(body, &words, &parts),
        "vote" => {
            let how = if words.has("ballot") {
                Vote::Ballot
            } else if words.has("all") {
                Vote::All
            } else if words.has("any") {
                Vote::Any
            } else {
                Vote::Uniform
            };
            Some(Operation::Vote { how, to: register(0)?, a: operand(1)? })
        }
        "activemask" => Some(Operation::ActiveMask { to: register(0)? }),
        "elect" => {
            let (to, chosen) = part(0)?.split_once('|')?;
            let (to, chosen) = (body.result(to.trim())?, body.register(chosen.trim())?.0);
            Some(Operation::ElectOne { to, chosen })
        }
        "redux" => {
            let with = match words.0.get(1).copied()? {
                "add" => Binary::Add,
                "min" => Binary::Minimum,
                "max" => Binary::Maximum,
                "and" => Binary::And,
                "or" => Binary::Or,
                "xor" => Binary::Xor,
                _ => return None,
            };
            Some(Operation::Reduce { with, ty: words.ty()?, to: register(0)?, a: operand(1)? })
        }
        "atom" | "red" => atomic(body, head, &words, &parts),
        "mbarrier" => arrival(body, &words, &parts),
        "cp" if words.0.first() == Some(&"async") => copied(body, &words, &parts),
        "ldmatrix" if words.has("m8n8") && words.has("b16") => {
            let to = body.all_results(part(0)?)?;
            let at = body.address(part(1)?, words.space())?;
            Some(Operation::LoadMatrices { transposed: words.has("trans"), to, at })
        }
        "stmatrix" if words.has("m8n8") && words.has("b16") => {
            let at = body.address(part(0)?, words.space())?;
            let from = body.operands(part(1)?)?;
            Some(Operation::StoreMatrices { transposed: words.has("trans"), from, at })
        }
        "wgmma" => warpgroup(body, &words, &parts),
        "wmma" => wmma(body, &words, &parts),
        "mma" => product(body, &words, &parts, true),
        _ => None,
    }
}

fn moved(body: &Body, words: &Words<'_>, parts: &[&str]) -> Option<Operation> {
    let [to, a] = parts else { return None };
    let ty = words.ty()?;
    let bits = 8 * ty.bytes() as u32;
    if to.starts_with('{') {
        return Some(Operation::Unpack { bits, to: body.results(to)?, a: body.operand(a)? });
    }
    let to = body.register(to)?.0;
    if a.starts_with('{') {
        return Some(Operation::Pack { bits, to, parts: body.operands(a)? });
    }
    Some(Operation::Unary { with: Unary::Move, ty, mode: Mode::default(), to, a: body.operand(a)? })
}

fn memory(body: &Body, head: &str, words: &Words<'_>, parts: &[&str]) -> Option<Operation> {
    let (space, ty) = (words.space(), words.ty()?);
    // Parts beyond the second are hints of caches.
    let (first, second) = (parts.first()?, parts.get(1)?);
    if head == "st" {
        let at = body.address(first, space)?;
        return Some(Operation::Store { space, ty, from: body.operands(second)?, at });
    }
    Some(Operation::Load { space, ty, to: body.results(first)?, at: body.address(second, space)? })
}

fn compared(body: &Body, words: &Words<'_>, parts: &[&str]) -> Option<Operation> {
    let with = words.comparison()?;
    let join = words.0.iter().find_map(|word| match *word {
        "and" => Some(Join::And),
        "or" => Some(Join::Or),
        "xor" => Some(Join::Xor),
        _ => None,
    });
    let (first, second) = parts.first()?.split_once('|').map_or((parts[0], "_"), |both| both);
    let to = [body.result(first.trim())?, body.result(second.trim())?];
    let (a, b) = (body.operand(parts.get(1)?)?, body.operand(parts.get(2)?)?);
    let join = match join {
        Some(join) => Some((join, body.operand(parts.get(3)?)?)),
        None => None,
    };
    Some(Operation::Compare { with, ty: words.ty()?, flush: words.has("ftz"), to, a, b, join })
}

fn converted(body: &Body, words: &Words<'_>, parts: &[&str]) -> Option<Operation> {
    let mode = words.mode();
    let types = words.types();
    let (&to_type, &from_type) = (types.first()?, types.get(1)?);
    let to = body.register(parts.first()?)?.0;
    if let [_, upper, lower] = parts {
        let (upper, lower) = (body.operand(upper)?, body.operand(lower)?);
        let known = matches!(to_type, Type::F16x2 | Type::Bf16x2) && from_type == Type::F32;
        return known.then_some(Operation::ConvertPair { to_type, mode, to, upper, lower });
    }
    let whole = words.0.iter().any(|word| matches!(*word, "rni" | "rzi" | "rmi" | "rpi"));
    Some(Operation::Convert { to_type, from_type, whole, mode, to, a: body.operand(parts.get(1)?)? })
}

fn shuffled(body: &Body, words: &Words<'_>, parts: &[&str]) -> Option<Operation> {
    let how = if words.has("up") {
        Shuffle::Up
    } else if words.has("down") {
        Shuffle::Down
    } else if words.has("bfly") {
        Shuffle::Butterfly
    } else {
        Shuffle::Index
    };
    let (to, within) = parts.first()?.split_once('|').map_or((parts[0], None), |(to, p)| (to, Some(p)));
    let within = match within {
        Some(name) => Some(body.register(name.trim())?.0),
        None => None,
    };
    let to = body.register(to.trim())?.0;
    let operand = |at: usize| body.operand(parts.get(at)?);
    Some(Operation::Shuffle { how, to, within, a: operand(1)?, b: operand(2)?, c: operand(3)? })
}

fn atomic(body: &Body, head: &str, words: &Words<'_>, parts: &[&str]) -> Option<Operation> {
    let how = words.0.iter().find_map(|word| {
        Some(match *word {
            "add" => Atomic::Add,
            "and" => Atomic::And,
            "or" => Atomic::Or,
            "xor" => Atomic::Xor,
            "min" => Atomic::Minimum,
            "max" => Atomic::Maximum,
            "exch" => Atomic::Exchange,
            "cas" => Atomic::CompareAndSwap,
            "inc" => Atomic::Increment,
            "dec" => Atomic::Decrement,
            _ => return None,
        })
    })?;
    let (space, ty) = (words.space(), words.ty()?);
    let (to, rest) = if head == "atom" { (body.result(parts.first()?)?, &parts[1..]) } else { (None, parts) };
    let at = body.address(rest.first()?, space)?;
    let a = body.operands(rest.get(1)?)?;
    let b = match rest.get(2) {
        Some(text) => Some(body.operand(text)?),
        None => None,
    };
    if a.len() > 1 {
        return None;
    }
    Some(Operation::Atomic { how, space, ty, to, at, a, b, flush: words.has("ftz") })
}

fn copied(body: &Body, words: &Words<'_>, parts: &[&str]) -> Option<Operation> {
    if words.has("commit_group") || words.has("wait_group") || words.has("wait_all") {
        return Some(Operation::Nothing);
    }
    if words.has("mbarrier") {
        // The copies before are done. Without `noinc` the arrival is one more that is waited for, and comes.
        let at = body.address(parts.first()?, Space::Shared)?;
        let arrival = Operation::Arrival { how: Arrival::Arrive, to: None, at, value: None };
        return Some(if words.has("noinc") { arrival } else { Operation::Nothing });
    }
    if words.has("bulk") {
        return copied_box(body, words, parts);
    }
    let to = body.address(parts.first()?, Space::Shared)?;
    let from = body.address(parts.get(1)?, Space::Global)?;
    let Operand::Value(bytes) = body.operand(parts.get(2)?)? else { return None };
    let taken = match parts.get(3) {
        Some(text) => Some(body.operand(text)?),
        None => None,
    };
    Some(Operation::AsyncCopy { to, from, bytes: bytes as usize, taken })
}

/// `cp.async.bulk.tensor` from the device's memory, without multicast.
fn copied_box(body: &Body, words: &Words<'_>, parts: &[&str]) -> Option<Operation> {
    let [to, from, barrier] = parts else { return None };
    let arriving = words.0.iter().any(|word| word.starts_with("mbarrier::complete_tx"));
    if !words.has("tensor") || !words.has("tile") || !arriving {
        return None;
    }
    let inner = from.strip_prefix('[')?.strip_suffix(']')?;
    let inner = split(inner);
    let [map, corner] = inner[..] else { return None };
    Some(Operation::CopyBox {
        to: body.address(to, Space::Shared)?,
        map: body.operand(map)?,
        corner: body.operands(corner)?,
        barrier: body.address(barrier, Space::Shared)?,
    })
}

fn arrival(body: &Body, words: &Words<'_>, parts: &[&str]) -> Option<Operation> {
    let how = match words.0.first().copied()? {
        "init" => Arrival::Begin,
        "inval" => Arrival::End,
        "arrive" if words.has("expect_tx") => Arrival::ArriveAnnouncing,
        "arrive" if !words.has("noComplete") => Arrival::Arrive,
        "expect_tx" => Arrival::Announce,
        "complete_tx" => Arrival::Came,
        "test_wait" => Arrival::Test { waits: false },
        "try_wait" => Arrival::Test { waits: true },
        _ => return None,
    };
    let (to, rest) = match parts.first()?.starts_with('[') {
        true => (None, parts),
        false => (body.result(parts[0])?, &parts[1..]),
    };
    let at = body.address(rest.first()?, words.space())?;
    let value = match rest.get(1) {
        Some(text) => Some(body.operand(text)?),
        None => None,
    };
    Some(Operation::Arrival { how, to, at, value })
}

fn warpgroup(body: &Body, words: &Words<'_>, parts: &[&str]) -> Option<Operation> {
    match words.0.first().copied()? {
        "fence" => return Some(Operation::Nothing),
        "commit_group" => return Some(Operation::WarpgroupCommit),
        "wait_group" => {
            let Operand::Value(but) = body.operand(parts.first()?)? else { return None };
            return Some(Operation::WarpgroupWait { but: but as usize });
        }
        "mma_async" => {}
        _ => return None,
    }
    let [Type::F32, ty @ (Type::Bf16 | Type::F16), other] = words.types()[..] else { return None };
    let [m, columns, depth] = shape(words)?;
    // Factors may also be negated.
    let (d, a, b, add, across) = match *parts {
        [d, a, b, add, "1", "1", of_a, of_b] => (d, Left::Shared(body.operand(a)?), b, add, [of_a, of_b]),
        [d, a, b, add, "1", "1", of_b] => (d, Left::Registers(body.all_results(a)?), b, add, ["0", of_b]),
        _ => return None,
    };
    let d = body.all_results(d)?;
    let held = !matches!(&a, Left::Registers(registers) if registers.len() != 4);
    let known = ty == other && [m, depth, d.len()] == [64, DEPTH, columns / 2] && held;
    let across = across.map(|of| of == "1");
    let (b, add) = (body.operand(b)?, body.operand(add)?);
    let product = WarpgroupProduct { columns, ty, d, a, b, add, across };
    known.then(|| Operation::WarpgroupProduct(Box::new(product)))
}

fn wmma(body: &Body, words: &Words<'_>, parts: &[&str]) -> Option<Operation> {
    let [m, n, k] = shape(words)?;
    let layout = || match words.0.iter().find(|word| matches!(**word, "row" | "col")) {
        Some(&"row") => Some(Layout::Row),
        Some(_) => Some(Layout::Column),
        None => None,
    };
    let (space, ty) = (words.space(), words.ty()?);
    let stride = |at: usize| match parts.get(at) {
        Some(text) => body.operand(text).map(Some),
        None => Some(None),
    };
    match words.0.first().copied()? {
        "load" => {
            let size = match words.0.get(1).copied()? {
                "a" => [m, k],
                "b" => [k, n],
                _ => [m, n],
            };
            let to = body.all_results(parts.first()?)?;
            let at = body.address(parts.get(1)?, space)?;
            let fragment = Fragment { size, ty, layout: layout()?, space, at, stride: stride(2)? };
            Some(Operation::LoadFragment { to, fragment: Box::new(fragment) })
        }
        "store" => {
            let at = body.address(parts.first()?, space)?;
            let from = body.operands(parts.get(1)?)?;
            let fragment = Fragment { size: [m, n], ty, layout: layout()?, space, at, stride: stride(2)? };
            Some(Operation::StoreFragment { from, fragment: Box::new(fragment) })
        }
        "mma" => product(body, words, parts, false),
        _ => None,
    }
}

fn product(body: &Body, words: &Words<'_>, parts: &[&str], stated: bool) -> Option<Operation> {
    let shape = shape(words)?;
    let types = words.types();
    let [d_type, a_type, b_type, c_type] = match types[..] {
        [d, a, b, c] => [d, a, b, c],
        // `wmma` of f16 names the accumulators' types only.
        [d, c] => [d, Type::F16, Type::F16, c],
        _ => return None,
    };
    if stated && !(words.has("row") && words.has("col")) {
        return None;
    }
    let product = Product {
        shape,
        a_type,
        b_type,
        c_type,
        d_type,
        stated,
        d: body.all_results(parts.first()?)?,
        a: body.operands(parts.get(1)?)?,
        b: body.operands(parts.get(2)?)?,
        c: body.operands(parts.get(3)?)?,
    };
    let known = [Part::A, Part::B, Part::C].iter().all(|&part| crate::matrix::is_known(&product, part));
    known.then(|| Operation::Product(Box::new(product)))
}
