//! A warp: 32 lanes, their registers, and where each of them stands.

use std::collections::VecDeque;

use crate::arrival::Arrivals;
use crate::block::Commons;
use crate::fault::Wrong;
use crate::instruction::{
    Address, Arrival, Atomic, Comparison, Join, LaneMask, Layout, Operand, Operation, Part, Register,
    Shuffle, Special, Vote,
};
use crate::launch::Launch;
use crate::scalar::Type;
use crate::shared::Access;
use crate::space::Space;
use crate::tensor_map::{TENSOR_MAP_BYTES, TensorMap};
use crate::warpgroup::{Begun, Left};
use crate::{atomic, bits, common_case, convert, float, matrix, memory};

/// The bits of an address that say where it is in its window.
const OFFSET: u64 = (1 << 32) - 1;

/// One value for each lane.
type Lanes = [u64; 32];

/// Lanes that stand at the same instruction.
#[derive(Clone, Copy, Debug)]
struct Group {
    at: usize,
    lanes: u32,
    /// Whether they wait at a barrier, which is the instruction before.
    waits: bool,
}

/// Why a warp stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// All lanes that have not ended wait.
    Barrier,
    /// All lanes have ended.
    End,
    /// Some lane waits for what other warps do.
    Turn,
}

/// Instruction, lane and what happened.
type Failure = (usize, usize, Wrong);

pub(crate) struct Warp {
    number: u32,
    lanes: u32,
    registers: Vec<Lanes>,
    local: Vec<u8>,
    groups: Vec<Group>,
    /// Whether a lane has found that it waits for other warps.
    turn: bool,
    done: u64,
    /// Products of four warps that are not in a group yet, and groups of them.
    begun: Vec<Begun>,
    groups_begun: VecDeque<Vec<Begun>>,
    /// Places of the lanes' threads in the block.
    threads: [[u32; 3]; 32],
}

fn each(lanes: u32) -> impl Iterator<Item = usize> {
    (0..32).filter(move |lane| lanes >> lane & 1 == 1)
}

fn is_pair(ty: Type) -> bool {
    matches!(ty, Type::F16x2 | Type::Bf16x2)
}

/// Whether a comparison holds, of a pair's lower or `upper` half.
fn compare(with: Comparison, ty: Type, flush: bool, (a, b): (u64, u64), upper: bool) -> bool {
    if !ty.is_float() {
        return bits::compare(with, ty, a, b);
    }
    let of = |bits: u64| float::decode(ty, bits >> if upper { 16 } else { 0 }, flush);
    float::compare(with, of(a), of(b))
}

fn place(thread: u32, [x, y, _]: [u32; 3]) -> [u32; 3] {
    [thread % x, thread / x % y, thread / x / y]
}

impl Warp {
    pub(crate) fn new(launch: &Launch<'_>, number: u32, threads: u32) -> Self {
        let there = (threads - 32 * number).min(32);
        let lanes = if there == 32 { u32::MAX } else { (1 << there) - 1 };
        Self {
            number,
            lanes,
            registers: vec![[0; 32]; launch.kernel.registers],
            local: vec![0xcd; 32 * launch.kernel.local],
            groups: Vec::new(),
            turn: false,
            done: 0,
            begun: Vec::new(),
            groups_begun: VecDeque::new(),
            threads: std::array::from_fn(|lane| place(32 * number + lane as u32, launch.block)),
        }
    }

    /// At the kernel's first instruction.
    pub(crate) fn begin(&mut self) {
        self.groups = vec![Group { at: 0, lanes: self.lanes, waits: false }];
        self.done = 0;
        self.begun.clear();
        self.groups_begun.clear();
    }

    pub(crate) fn thread(&self, launch: &Launch<'_>, lane: usize) -> [u32; 3] {
        place(32 * self.number + lane as u32, launch.block)
    }

    /// Lets lanes go on that wait.
    pub(crate) fn release(&mut self) {
        for group in &mut self.groups {
            group.waits = false;
        }
    }

    /// Runs until all lanes wait or have ended.
    pub(crate) fn run(&mut self, commons: &mut Commons<'_>) -> Result<Stop, Failure> {
        let code = &commons.launch.kernel.code;
        loop {
            // Those furthest behind go on, together with all that stand there.
            let Some(at) = self.groups.iter().filter(|g| !g.waits).map(|g| g.at).min() else {
                return Ok(if self.groups.is_empty() { Stop::End } else { Stop::Barrier });
            };
            let mut lanes = 0;
            self.groups.retain(|group| {
                let taken = group.at == at && !group.waits;
                lanes |= if taken { group.lanes } else { 0 };
                !taken
            });
            let next = self.groups.iter().filter(|g| !g.waits).map(|g| g.at).min().unwrap_or(usize::MAX);
            let mut at = at;
            while at < next {
                let instruction = &code[at];
                self.done += 1;
                commons.statistics.instructions += 1;
                if self.done > commons.most {
                    return Err((at, lanes.trailing_zeros() as usize, Wrong::Endless(commons.most)));
                }
                let active = match instruction.guard {
                    None => lanes,
                    Some((register, negated)) => {
                        let values = &self.registers[register as usize];
                        let of = |lane: usize| u32::from((values[lane] & 1 == 1) != negated) << lane;
                        each(lanes).map(of).sum()
                    }
                };
                match &instruction.operation {
                    Operation::Branch { to } => {
                        let to = *to;
                        if active == lanes {
                            at = to;
                            continue;
                        }
                        if active != 0 {
                            self.groups.push(Group { at: to, lanes: active, waits: false });
                            self.groups.push(Group { at: at + 1, lanes: lanes & !active, waits: false });
                            lanes = 0;
                            break;
                        }
                    }
                    Operation::BranchIndexed { index, to } => {
                        for lane in each(active) {
                            let index = self.value(commons, *index, lane) as usize;
                            let to = *to.get(index).unwrap_or(&(at + 1));
                            self.groups.push(Group { at: to, lanes: 1 << lane, waits: false });
                        }
                        lanes &= !active;
                        if lanes != 0 {
                            self.groups.push(Group { at: at + 1, lanes, waits: false });
                        }
                        lanes = 0;
                        break;
                    }
                    Operation::Exit => {
                        lanes &= !active;
                        if lanes == 0 {
                            break;
                        }
                    }
                    Operation::Barrier => {
                        self.groups.push(Group { at: at + 1, lanes: active, waits: true });
                        lanes &= !active;
                        if lanes == 0 {
                            break;
                        }
                    }
                    operation => {
                        if active != 0 {
                            self.execute(commons, operation, active)
                                .map_err(|(lane, what)| (at, lane, what))?;
                        }
                    }
                }
                at += 1;
                if self.turn {
                    break;
                }
            }
            if lanes != 0 {
                self.groups.push(Group { at, lanes, waits: false });
            }
            if std::mem::take(&mut self.turn) {
                return Ok(Stop::Turn);
            }
        }
    }

    fn special(&self, commons: &Commons<'_>, special: Special, lane: usize) -> u64 {
        let launch = commons.launch;
        u64::from(match special {
            Special::Tid(axis) => self.threads[lane][axis],
            Special::Ntid(axis) => launch.block[axis],
            Special::Ctaid(axis) => commons.place[axis],
            Special::Nctaid(axis) => launch.grid[axis],
            Special::Lane => lane as u32,
            Special::Warp => self.number,
            Special::Warps => launch.block.iter().product::<u32>().div_ceil(32),
            Special::LaneMask(of) => {
                let own = 1_u32 << lane;
                match of {
                    LaneMask::Equal => own,
                    LaneMask::Less => own - 1,
                    LaneMask::LessOrEqual => own | (own - 1),
                    LaneMask::Greater => !(own | (own - 1)),
                    LaneMask::GreaterOrEqual => !(own - 1),
                }
            }
            Special::Clock => return self.done,
            Special::DynamicShared => launch.shared as u32,
            Special::TotalShared => commons.shared.len() as u32,
            Special::Zero => 0,
        })
    }

    fn value(&self, commons: &Commons<'_>, operand: Operand, lane: usize) -> u64 {
        match operand {
            Operand::Register(register) => self.registers[register as usize][lane],
            Operand::Not(register) => self.registers[register as usize][lane] ^ 1,
            Operand::Value(value) => value,
            Operand::Special(special) => self.special(commons, special, lane),
        }
    }

    fn values(&self, commons: &Commons<'_>, operand: Operand) -> Lanes {
        match operand {
            Operand::Register(register) => self.registers[register as usize],
            Operand::Not(register) => self.registers[register as usize].map(|value| value ^ 1),
            Operand::Value(value) => [value; 32],
            Operand::Special(special) => std::array::from_fn(|lane| self.special(commons, special, lane)),
        }
    }

    fn put(&mut self, to: Register, lanes: u32, values: Lanes) {
        let place = &mut self.registers[to as usize];
        if lanes == u32::MAX {
            *place = values;
        } else {
            for lane in each(lanes) {
                place[lane] = values[lane];
            }
        }
    }

    fn address(&self, commons: &Commons<'_>, at: Address, lane: usize) -> u64 {
        self.value(commons, at.base, lane).wrapping_add(at.offset as u64)
    }

    /// Bytes at a lane's address, at most 16.
    fn read(
        &mut self,
        commons: &mut Commons<'_>,
        space: Space,
        address: u64,
        bytes: usize,
        lane: usize,
    ) -> Result<[u8; 32], (usize, Wrong)> {
        let mut out = [0; 32];
        let place = self.bytes(commons, space, address, bytes, lane, Access::Read)?;
        out[..bytes].copy_from_slice(place);
        Ok(out)
    }

    fn bytes<'b>(
        &'b mut self,
        commons: &'b mut Commons<'_>,
        space: Space,
        address: u64,
        bytes: usize,
        lane: usize,
        access: Access,
    ) -> Result<&'b mut [u8], (usize, Wrong)> {
        let own = self.local.len() / 32;
        let local = &mut self.local[lane * own..(lane + 1) * own];
        let thread = 32 * self.number + lane as u32;
        commons.bytes(space, address, bytes, thread, access, local).map_err(|what| (lane, what))
    }

    /// One instruction, for the lanes that are active.
    #[allow(clippy::too_many_lines, reason = "one arm for each kind of instruction")]
    fn execute(
        &mut self,
        commons: &mut Commons<'_>,
        operation: &Operation,
        lanes: u32,
    ) -> Result<(), (usize, Wrong)> {
        let first = lanes.trailing_zeros() as usize;
        match operation {
            Operation::Nothing => {}
            &Operation::Unary { with, ty, mode, to, a } => {
                let a = self.values(commons, a);
                let values = match ty.is_float() {
                    true => a.map(|a| float::unary(with, ty, mode, a)),
                    false => a.map(|a| bits::unary(with, ty, a)),
                };
                self.put(to, lanes, values);
            }
            &Operation::Binary { with, ty, mode, to, a, b } => {
                let (a, b) = (self.values(commons, a), self.values(commons, b));
                let values =
                    common_case::binary(with, ty, mode, &a, &b).unwrap_or_else(|| match ty.is_float() {
                        true => std::array::from_fn(|i| float::binary(with, ty, mode, a[i], b[i])),
                        false => std::array::from_fn(|i| bits::binary(with, ty, mode, a[i], b[i])),
                    });
                self.put(to, lanes, values);
            }
            &Operation::Ternary { with, ty, mode, to, a, b, c } => {
                let (a, b, c) = (self.values(commons, a), self.values(commons, b), self.values(commons, c));
                let one_by_one = || match ty.is_float() && float::is_arithmetic(with) {
                    true => std::array::from_fn(|i| float::multiply_add(ty, mode, a[i], b[i], c[i])),
                    false => std::array::from_fn(|i| bits::ternary(with, ty, a[i], b[i], c[i])),
                };
                let values = common_case::ternary(with, ty, mode, &a, &b, &c).unwrap_or_else(one_by_one);
                self.put(to, lanes, values);
            }
            &Operation::InsertBits { ty, to, from, into, at, bits: count } => {
                let [from, into, at, count] = [from, into, at, count].map(|o| self.values(commons, o));
                let of = |i: usize| bits::insert(ty, from[i], into[i], at[i], count[i]);
                self.put(to, lanes, std::array::from_fn(of));
            }
            &Operation::Compare { with, ty, flush, to, a, b, join } => {
                let (a, b) = (self.values(commons, a), self.values(commons, b));
                if let ([Some(to), None], None) = (to, join)
                    && let Some(values) = common_case::compare(with, ty, &a, &b)
                {
                    self.put(to, lanes, values);
                    return Ok(());
                }
                let pair = is_pair(ty);
                let holds = |i: usize, upper: bool| compare(with, ty, flush, (a[i], b[i]), upper);
                let joined = join.map(|(join, c)| (join, self.values(commons, c)));
                let meet = |i: usize, holds: bool| match &joined {
                    None => holds,
                    Some((Join::And, c)) => holds && c[i] & 1 == 1,
                    Some((Join::Or, c)) => holds || c[i] & 1 == 1,
                    Some((Join::Xor, c)) => holds != (c[i] & 1 == 1),
                };
                if let Some(to) = to[0] {
                    let values = std::array::from_fn(|i| u64::from(meet(i, holds(i, false))));
                    self.put(to, lanes, values);
                }
                if let Some(to) = to[1] {
                    let second = |i| if pair { holds(i, true) } else { !holds(i, false) };
                    let values = std::array::from_fn(|i| u64::from(meet(i, second(i))));
                    self.put(to, lanes, values);
                }
            }
            &Operation::Set { with, to_type, ty, flush, to, a, b } => {
                let (a, b) = (self.values(commons, a), self.values(commons, b));
                let pair = is_pair(ty);
                let one = match to_type {
                    Type::F32 => 0x3f80_0000,
                    Type::F16 | Type::F16x2 => 0x3c00,
                    Type::Bf16 | Type::Bf16x2 => 0x3f80,
                    _ if pair => 0xffff,
                    _ => to_type.mask(),
                };
                let of = |i: usize| {
                    let half = |upper| if compare(with, ty, flush, (a[i], b[i]), upper) { one } else { 0 };
                    if pair { half(false) | half(true) << 16 } else { half(false) }
                };
                self.put(to, lanes, std::array::from_fn(of));
            }
            &Operation::Convert { to_type, from_type, whole, mode, to, a } => {
                let a = self.values(commons, a);
                let values = a.map(|a| convert::convert(to_type, from_type, whole, mode, a));
                self.put(to, lanes, values);
            }
            &Operation::ConvertPair { to_type, mode, to, upper, lower } => {
                let (upper, lower) = (self.values(commons, upper), self.values(commons, lower));
                let half =
                    |bits| float::encode(to_type, float::decode(Type::F32, bits, mode.flush), mode) & 0xffff;
                let values = std::array::from_fn(|i| half(upper[i]) << 16 | half(lower[i]));
                self.put(to, lanes, values);
            }
            Operation::Pack { bits, to, parts } => {
                let width = bits / parts.len() as u32;
                let low = (1_u64 << width) - 1;
                let mut values = [0; 32];
                for (at, &part) in parts.iter().enumerate() {
                    let part = self.values(commons, part);
                    for (value, part) in values.iter_mut().zip(part) {
                        *value |= (part & low) << (width * at as u32);
                    }
                }
                self.put(*to, lanes, values);
            }
            Operation::Unpack { bits, to, a } => {
                let width = bits / to.len() as u32;
                let low = (1_u64 << width) - 1;
                let a = self.values(commons, *a);
                for (at, to) in to.iter().enumerate() {
                    if let Some(to) = to {
                        self.put(*to, lanes, a.map(|a| a >> (width * at as u32) & low));
                    }
                }
            }
            Operation::Load { space, ty, to, at } => {
                let width = ty.bytes();
                for lane in each(lanes) {
                    let address = self.address(commons, *at, lane);
                    let found = self.read(commons, *space, address, width * to.len(), lane)?;
                    for (to, bytes) in to.iter().zip(found.chunks_exact(width)) {
                        let mut value = [0; 8];
                        value[..width].copy_from_slice(bytes);
                        if let Some(to) = to {
                            // Signed numbers fill wider registers with their sign.
                            self.registers[*to as usize][lane] = ty.widen(u64::from_le_bytes(value));
                        }
                    }
                }
            }
            Operation::Store { space, ty, from, at } => {
                let width = ty.bytes();
                for lane in each(lanes) {
                    let address = self.address(commons, *at, lane);
                    let mut bytes = [0; 32];
                    for (place, &from) in bytes.chunks_exact_mut(width).zip(from) {
                        let value = self.value(commons, from, lane);
                        place.copy_from_slice(&value.to_le_bytes()[..width]);
                    }
                    let count = width * from.len();
                    let place = self.bytes(commons, *space, address, count, lane, Access::Write)?;
                    place.copy_from_slice(&bytes[..count]);
                }
            }
            &Operation::Generic { space, back, to, a } => {
                let base = memory::base(space);
                let a = self.values(commons, a);
                let values = a.map(|a| if back { a.wrapping_sub(base) } else { a.wrapping_add(base) });
                self.put(to, lanes, values);
            }
            &Operation::Shuffle { how, to, within, a, b, c } => {
                let [a, b, c] = [a, b, c].map(|o| self.values(commons, o));
                let mut values = [0; 32];
                let mut inside = [0; 32];
                for lane in each(lanes) {
                    let clamp = c[lane] as usize & 31;
                    let segment = c[lane] as usize >> 8 & 31;
                    let by = b[lane] as usize & 31;
                    let least = lane & segment;
                    let most = least | (clamp & !segment);
                    let (from, there) = match how {
                        Shuffle::Up => (lane.wrapping_sub(by), lane >= by && lane - by >= most),
                        Shuffle::Down => (lane + by, lane + by <= most),
                        Shuffle::Butterfly => (lane ^ by, lane ^ by <= most),
                        Shuffle::Index => (least | (by & !segment), least | (by & !segment) <= most),
                    };
                    let from = if there { from } else { lane };
                    values[lane] = a[from];
                    inside[lane] = u64::from(there);
                }
                self.put(to, lanes, values);
                if let Some(within) = within {
                    self.put(within, lanes, inside);
                }
            }
            &Operation::Vote { how, to, a } => {
                let a = self.values(commons, a);
                let ballot: u32 = each(lanes).map(|lane| ((a[lane] & 1) as u32) << lane).sum();
                let value = match how {
                    Vote::Ballot => u64::from(ballot),
                    Vote::All => u64::from(ballot == lanes),
                    Vote::Any => u64::from(ballot != 0),
                    Vote::Uniform => u64::from(ballot == 0 || ballot == lanes),
                };
                self.put(to, lanes, [value; 32]);
            }
            &Operation::ActiveMask { to } => self.put(to, lanes, [u64::from(lanes); 32]),
            &Operation::Reduce { with, ty, to, a } => {
                let a = self.values(commons, a);
                let of = |x, y| bits::binary(with, ty, crate::instruction::Mode::default(), x, y);
                let value = each(lanes).map(|lane| a[lane]).reduce(of).unwrap_or(0);
                self.put(to, lanes, [value; 32]);
            }
            &Operation::ElectOne { to, chosen } => {
                if let Some(to) = to {
                    self.put(to, lanes, [first as u64; 32]);
                }
                self.put(chosen, lanes, std::array::from_fn(|lane| u64::from(lane == first)));
            }
            Operation::Atomic { how, space, ty, to, at, a, b, flush } => {
                let width = ty.bytes();
                for lane in each(lanes) {
                    let address = self.address(commons, *at, lane);
                    let is_sum = *how == Atomic::Add && ty.is_float();
                    if is_sum && (*space == Space::Global || address < memory::SHARED) {
                        commons.statistics.atomic_sums += 1;
                    }
                    let a = self.value(commons, a[0], lane);
                    let b = b.map(|b| self.value(commons, b, lane));
                    let place = self.bytes(commons, *space, address, width, lane, Access::Atomic)?;
                    let mut old = [0; 8];
                    old[..width].copy_from_slice(place);
                    let old = u64::from_le_bytes(old);
                    let new = atomic::combine(*how, *ty, *flush, old, a, b);
                    place.copy_from_slice(&new.to_le_bytes()[..width]);
                    if let Some(to) = to {
                        self.registers[*to as usize][lane] = old;
                    }
                }
            }
            &Operation::AsyncCopy { to, from, bytes, taken } => {
                for lane in each(lanes) {
                    let taken = match taken {
                        Some(taken) => (self.value(commons, taken, lane) as usize).min(bytes),
                        None => bytes,
                    };
                    let from = self.address(commons, from, lane);
                    let to = self.address(commons, to, lane);
                    let mut found = [0; 32];
                    if taken == bytes {
                        found = self.read(commons, Space::Global, from, bytes, lane)?;
                    } else {
                        for (at, byte) in found.iter_mut().enumerate().take(taken) {
                            *byte = self.read(commons, Space::Global, from + at as u64, 1, lane)?[0];
                        }
                    }
                    let place = self.bytes(commons, Space::Shared, to, bytes, lane, Access::Write)?;
                    place.copy_from_slice(&found[..bytes]);
                }
            }
            &Operation::Arrival { how, to, at, value } => {
                for lane in each(lanes) {
                    let address = self.address(commons, at, lane);
                    let value = value.map(|value| self.value(commons, value, lane));
                    let found = self.on_barrier(commons, address, lane, |barrier| match how {
                        Arrival::Begin => {
                            *barrier = Arrivals::new(value.unwrap_or(1));
                            0
                        }
                        Arrival::End => 0,
                        Arrival::Arrive => barrier.arrive(value.unwrap_or(1), 0),
                        Arrival::ArriveAnnouncing => barrier.arrive(1, value.unwrap_or(0) as i64),
                        Arrival::Announce => barrier.arrive(0, value.unwrap_or(0) as i64),
                        Arrival::Came => {
                            barrier.came(value.unwrap_or(0));
                            0
                        }
                        Arrival::Test { .. } => u64::from(barrier.is_over(value.unwrap_or(0))),
                    })?;
                    match how {
                        Arrival::Test { .. } if found != 0 => {
                            commons.shared.pass(self.number, address & OFFSET)
                        }
                        Arrival::Test { waits: true } => self.turn = true,
                        Arrival::Arrive | Arrival::ArriveAnnouncing | Arrival::Came => {
                            commons.shared.arrive(self.number, address & OFFSET);
                        }
                        _ => {}
                    }
                    if let Some(to) = to {
                        self.registers[to as usize][lane] = found;
                    }
                }
            }
            Operation::CopyBox { to, map, corner, barrier } => {
                for lane in each(lanes) {
                    let address = self.value(commons, *map, lane);
                    let mut bytes = [0; TENSOR_MAP_BYTES];
                    for (at, piece) in bytes.chunks_exact_mut(16).enumerate() {
                        let from = address + 16 * at as u64;
                        piece.copy_from_slice(&self.read(commons, Space::Generic, from, 16, lane)?[..16]);
                    }
                    let map = TensorMap::decode(&bytes);
                    let corner: Vec<i64> =
                        (corner.iter()).map(|&at| i64::from(self.value(commons, at, lane) as i32)).collect();
                    if corner.len() != map.boxed.len() || map.element == 0 {
                        return Err((lane, Wrong::Instruction("a copy without a tensor map".to_owned())));
                    }
                    let start = self.address(commons, *to, lane);
                    let width = map.element as usize;
                    for element in 0..map.bytes() / width {
                        let mut value = [0; 32];
                        if let Some(from) = map.source(&corner, element) {
                            value = self.read(commons, Space::Global, from, width, lane)?;
                        }
                        let place = map.place(start, (element * width) as u64);
                        // The copy is the hardware's, which meets no thread without the barrier.
                        let place = self.bytes(commons, Space::Shared, place, width, lane, Access::Atomic)?;
                        place.copy_from_slice(&value[..width]);
                    }
                    let at = self.address(commons, *barrier, lane);
                    self.on_barrier(commons, at, lane, |barrier| barrier.came(map.bytes() as u64))?;
                    commons.shared.arrive(self.number, at & OFFSET);
                }
            }
            Operation::LoadMatrices { transposed, to, at } => {
                let mut rows = Vec::with_capacity(8 * to.len());
                for lane in 0..8 * to.len() {
                    let address = self.address(commons, *at, lane);
                    rows.push(self.read(commons, Space::Generic.or_shared(address), address, 16, lane)?);
                }
                for (number, &to) in to.iter().enumerate() {
                    let half = |row: usize, column: usize| {
                        let row = &rows[8 * number + row];
                        u64::from(u16::from_le_bytes([row[2 * column], row[2 * column + 1]]))
                    };
                    let values = std::array::from_fn(|lane| {
                        let (outer, inner) = (lane / 4, 2 * (lane % 4));
                        match transposed {
                            false => half(outer, inner) | half(outer, inner + 1) << 16,
                            true => half(inner, outer) | half(inner + 1, outer) << 16,
                        }
                    });
                    self.put(to, lanes, values);
                }
            }
            Operation::StoreMatrices { transposed, from, at } => {
                let registers: Vec<Lanes> = from.iter().map(|&o| self.values(commons, o)).collect();
                for (number, values) in registers.iter().enumerate() {
                    for row in 0..8 {
                        let mut bytes = [0; 16];
                        for (column, place) in bytes.chunks_exact_mut(2).enumerate() {
                            let (outer, inner) = if *transposed { (column, row) } else { (row, column) };
                            let value = values[4 * outer + inner / 2] >> (16 * (inner % 2));
                            place.copy_from_slice(&(value as u16).to_le_bytes());
                        }
                        let lane = 8 * number + row;
                        let address = self.address(commons, *at, lane);
                        let space = Space::Generic.or_shared(address);
                        let place = self.bytes(commons, space, address, 16, lane, Access::Write)?;
                        place.copy_from_slice(&bytes);
                    }
                }
            }
            Operation::LoadFragment { to, fragment } => {
                let mut registers = vec![[0; 32]; to.len()];
                let width = fragment.ty.bytes();
                let [rows, columns] = fragment.size;
                for lane in 0..32 {
                    for at in 0..rows * columns / 32 {
                        let place = matrix::own(fragment.size, lane, at);
                        let address = self.element(commons, fragment, place, lane);
                        let found = self.read(commons, fragment.space, address, width, lane)?;
                        let mut value = [0; 8];
                        value[..width].copy_from_slice(&found[..width]);
                        matrix::put(fragment.ty, &mut registers, lane, at, u64::from_le_bytes(value));
                    }
                }
                for (&to, values) in to.iter().zip(registers) {
                    self.put(to, lanes, values);
                }
            }
            Operation::StoreFragment { from, fragment } => {
                let registers: Vec<Lanes> = from.iter().map(|&o| self.values(commons, o)).collect();
                let width = fragment.ty.bytes();
                let [rows, columns] = fragment.size;
                for lane in 0..32 {
                    for at in 0..rows * columns / 32 {
                        let place = matrix::own(fragment.size, lane, at);
                        let address = self.element(commons, fragment, place, lane);
                        let value = matrix::element(fragment.ty, &registers, lane, at);
                        let place =
                            self.bytes(commons, fragment.space, address, width, lane, Access::Write)?;
                        place.copy_from_slice(&value.to_le_bytes()[..width]);
                    }
                }
            }
            Operation::Product(product) => {
                commons.statistics.products += 1;
                let part = |warp: &Self, operands: &[Operand], part, ty| {
                    let registers: Vec<Lanes> = operands.iter().map(|&o| warp.values(commons, o)).collect();
                    matrix::gather(product, part, ty, &registers)
                };
                let a = part(self, &product.a, Part::A, product.a_type);
                let b = part(self, &product.b, Part::B, product.b_type);
                let c = part(self, &product.c, Part::C, product.c_type);
                let values = matrix::multiply(product, &a, &b, &c);
                for (&to, values) in product.d.iter().zip(values) {
                    self.put(to, lanes, values);
                }
            }
            Operation::WarpgroupProduct(product) => {
                commons.statistics.products += 1;
                let of = |operand| self.value(commons, operand, first);
                let a = match product.a {
                    Left::Shared(descriptor) => Some(of(descriptor)),
                    Left::Registers(_) => None,
                };
                let (b, add) = (of(product.b), of(product.add) & 1 == 1);
                let begun = Begun { product: (**product).clone(), a, b, add };
                if !begun.is_known() {
                    return Err((
                        first,
                        Wrong::Instruction(format!("wgmma of descriptors {a:#x?} and {b:#x}")),
                    ));
                }
                self.begun.push(begun);
            }
            Operation::WarpgroupCommit => self.groups_begun.push_back(std::mem::take(&mut self.begun)),
            Operation::WarpgroupWait { but } => {
                while self.groups_begun.len() > *but {
                    for begun in self.groups_begun.pop_front().into_iter().flatten() {
                        let registers = &begun.product.d;
                        let held = |registers: &[Register]| -> Vec<Lanes> {
                            registers.iter().map(|&register| self.registers[register as usize]).collect()
                        };
                        let sums = held(registers);
                        let lefts = match &begun.product.a {
                            Left::Shared(_) => Vec::new(),
                            Left::Registers(registers) => held(registers),
                        };
                        let values = begun.multiply(self.number as usize, &sums, &lefts, |address| {
                            let found = self.read(commons, Space::Shared, address, 16, first)?;
                            let mut bytes = [0; 16];
                            bytes.copy_from_slice(&found[..16]);
                            Ok(bytes)
                        })?;
                        for (&to, values) in registers.iter().zip(values) {
                            self.put(to, lanes, values);
                        }
                    }
                }
            }
            Operation::Trap => return Err((first, Wrong::Trap)),
            Operation::Unknown(text) => return Err((first, Wrong::Instruction(text.clone()))),
            Operation::Branch { .. }
            | Operation::BranchIndexed { .. }
            | Operation::Exit
            | Operation::Barrier => unreachable!("invariant: the walk through the code takes these"),
        }
        Ok(())
    }

    /// Changes a barrier in memory, which others see before or after it.
    fn on_barrier<T>(
        &mut self,
        commons: &mut Commons<'_>,
        address: u64,
        lane: usize,
        change: impl FnOnce(&mut Arrivals) -> T,
    ) -> Result<T, (usize, Wrong)> {
        let space = Space::Generic.or_shared(address);
        let place = self.bytes(commons, space, address, 8, lane, Access::Atomic)?;
        let mut word = [0; 8];
        word.copy_from_slice(place);
        let mut barrier = Arrivals::read(u64::from_le_bytes(word));
        let found = change(&mut barrier);
        place.copy_from_slice(&barrier.bits().to_le_bytes());
        Ok(found)
    }

    /// The address of an element of a fragment in memory.
    fn element(
        &self,
        commons: &Commons<'_>,
        fragment: &crate::instruction::Fragment,
        [row, column]: [usize; 2],
        lane: usize,
    ) -> u64 {
        let [rows, columns] = fragment.size;
        let (outer, inner, whole) = match fragment.layout {
            Layout::Row => (row, column, columns),
            Layout::Column => (column, row, rows),
        };
        let stride = fragment.stride.map_or(whole as u64, |stride| self.value(commons, stride, lane));
        let elements = outer as u64 * (stride & 0xffff_ffff) + inner as u64;
        self.address(commons, fragment.at, lane) + elements * fragment.ty.bytes() as u64
    }
}

impl Space {
    /// Of `ldmatrix`, `stmatrix` and `mbarrier`, whose addresses are of shared memory, or generic ones that lie there.
    fn or_shared(self, address: u64) -> Self {
        if address >= memory::SHARED { self } else { Self::Shared }
    }
}
