//! Pages of one pool that hold what sequences have said, and attention of new tokens over it.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::tensor::{DType, Device, Int, Tensor};
use burnish_gpu_kernels::{NOWHERE, PAGE, PagedRow, PagedRows};

use super::{Body, kernels};
use crate::attention::{AttentionShape, HeadNorm, Rotary};
use crate::gpu::wide_dtype;
use crate::{AnyTensor, Documents, OpsError};
use kernels::Pools;

/// Keys and values of all sequences. Sequences that say the same share its pages; a page that somebody else holds is
/// copied before it is written to.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    pools: Option<Pools>,
    /// How many sequences hold each page.
    held: Vec<u32>,
    said: Vec<Said>,
}

/// A sequence's pages in their order.
#[derive(Clone, Debug, Default)]
struct Said {
    pages: Vec<u32>,
    len: usize,
}

/// What pages are: `[64, kv_heads, d]` of a dtype on a device.
struct Page {
    heads: [usize; 2],
    device: Device,
    dtype: DType,
}

impl Page {
    fn of(shape: &AttentionShape, qkv: &AnyTensor) -> Self {
        Self { heads: [shape.kv_heads, shape.head_dim], device: qkv.device(), dtype: qkv.burn_dtype() }
    }

    fn of_pool(pool: &AnyTensor) -> Self {
        let [_, _, kv_heads, d] = <[usize; 4]>::try_from(pool.shape()).unwrap_or_default();
        Self { heads: [kv_heads, d], device: pool.device(), dtype: pool.burn_dtype() }
    }

    fn pools(&self, pages: usize) -> Pools {
        let [kv_heads, d] = self.heads;
        let options = (&self.device, self.dtype);
        [(); 2].map(|()| AnyTensor::new(Tensor::<4>::empty([pages, PAGE, kv_heads, d], options)))
    }
}

/// Pages of a sequence's table in a step, at least.
const ROOM: usize = 8;

/// Where the rows of a step go, a row for each sequence and some that are nobody's, and what they see: words that lie
/// alike in each step until a sequence has more pages than there is room for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepRows {
    places: Vec<u32>,
    rows: PagedRows,
}

impl StepRows {
    /// The words of a device.
    pub(crate) fn words(&self) -> [&[u32]; 2] {
        [&self.places, self.rows.words()]
    }

    /// These rows, where their words are.
    pub(crate) fn placed(&self, [places, words]: [Tensor<1, Int>; 2]) -> PlacedRows {
        PlacedRows { places, rows: self.rows.clone(), words }
    }

    /// Whether their words may lie where those of others are.
    pub(crate) fn fit(&self, placed: &PlacedRows) -> bool {
        let lens = [&placed.places, &placed.words].map(|words| words.dims()[0]);
        self.words().map(<[u32]>::len) == lens
    }
}

/// Rows of which a device knows where they go and what they see.
#[derive(Clone, Debug)]
pub struct PlacedRows {
    places: Tensor<1, Int>,
    rows: PagedRows,
    words: Tensor<1, Int>,
}

impl PlacedRows {
    /// How many.
    pub(crate) fn len(&self) -> usize {
        self.rows.rows()
    }
}

impl Pages {
    /// `None` where no kernel reads them: other devices than CubeCL's, f64, heads of more than 256 elements.
    pub(crate) fn open(sequences: usize, shape: &AttentionShape, like: &AnyTensor) -> Option<Self> {
        kernels::Flash::kernel(&like.plain(), shape)?;
        Some(Self::empty(sequences))
    }

    pub(crate) fn empty(sequences: usize) -> Self {
        Self { pools: None, held: Vec::new(), said: vec![Said::default(); sequences] }
    }

    pub(crate) fn sequences(&self) -> usize {
        self.said.len()
    }

    pub(crate) fn len(&self, sequence: usize) -> usize {
        self.said[sequence].len
    }

    /// Bytes of storage held.
    pub(crate) fn bytes(&self) -> usize {
        let of = |pool: &AnyTensor| pool.shape().iter().product::<usize>() * pool.burn_dtype().size();
        self.pools.iter().flatten().map(of).sum()
    }

    pub(crate) fn reorder(&mut self, order: &[usize]) {
        self.said = order.iter().map(|&o| self.said[o].clone()).collect();
        self.count();
    }

    /// Counts who holds what, and lets go of the pools when that is nothing.
    fn count(&mut self) {
        self.held.fill(0);
        for page in self.said.iter().flat_map(|said| &said.pages) {
            self.held[*page as usize] += 1;
        }
        if self.held.iter().all(|&held| held == 0) {
            (self.pools, self.held) = (None, Vec::new());
        }
    }

    /// The sequences of `other` follow.
    pub(crate) fn append(&mut self, other: Self) {
        let Some(from) = other.pools else {
            self.said.extend(other.said);
            return;
        };
        let wanted: Vec<u32> =
            (0..).zip(&other.held).filter(|(_, held)| **held > 0).map(|(page, _)| page).collect();
        let own = self.take(wanted.len(), &Page::of_pool(&from[0]));
        let moved: BTreeMap<u32, u32> = wanted.into_iter().zip(own).collect();
        let pairs: Vec<[u32; 2]> = moved.iter().map(|(&from, &to)| [from, to]).collect();
        self.pools = self.pools.take().map(|to| kernels::copy_pages(&from, to, &pairs));
        self.said.extend(
            other.said.into_iter().map(|said| Said {
                pages: said.pages.iter().map(|page| moved[page]).collect(),
                len: said.len,
            }),
        );
        self.count();
    }

    /// Takes out the sequences from `at` on, with pools of their own.
    pub(crate) fn split_off(&mut self, at: usize) -> Self {
        let said = self.said.split_off(at);
        let mut tail = Self { pools: self.pools.clone(), held: self.held.clone(), said };
        tail.count();
        let mut new = Self::empty(0);
        new.append(tail);
        self.count();
        new
    }

    /// So many pages that nobody holds, of pools that are enlarged where they have not as many; they count as held.
    fn take(&mut self, wanted: usize, page: &Page) -> Vec<u32> {
        let free = self.held.iter().filter(|&&held| held == 0).count();
        if free < wanted {
            let before = self.held.len();
            // Enough for the next steps of all, which may be recorded: not in other memory.
            let pages = before + (wanted - free).max(before / 2).max(2 * self.said.len());
            let to = page.pools(pages);
            let pairs: Vec<[u32; 2]> = (0..before as u32).map(|page| [page; 2]).collect();
            self.pools = Some(match self.pools.take() {
                Some(from) => kernels::copy_pages(&from, to, &pairs),
                None => to,
            });
            self.held.resize(pages, 0);
        }
        let free: Vec<u32> = (0..)
            .zip(&self.held)
            .filter(|(_, held)| **held == 0)
            .map(|(page, _)| page)
            .take(wanted)
            .collect();
        free.iter().for_each(|&page| self.held[page as usize] = 1);
        free
    }

    /// Gives each sequence pages for its new rows, of its own where they are written to; the place of each of `tokens` rows.
    fn places(&mut self, documents: &[Range<usize>], tokens: usize, page: &Page) -> Vec<u32> {
        let new =
            |said: &Said, rows: &Range<usize>| (said.len + rows.len()).div_ceil(PAGE) - said.pages.len();
        let shared = |held: &[u32], said: &Said, rows: &Range<usize>| {
            let last = said.pages.last().filter(|_| !rows.is_empty() && !said.len.is_multiple_of(PAGE));
            last.is_some_and(|&page| held[page as usize] > 1)
        };
        // Of sequences that share a page, the last to write keeps it.
        let mut wanted = 0;
        let mut held = self.held.clone();
        for (said, rows) in self.said.iter().zip(documents) {
            wanted += new(said, rows);
            if shared(&held, said, rows) {
                wanted += 1;
                held[said.pages[said.pages.len() - 1] as usize] -= 1;
            }
        }
        let mut taken = self.take(wanted, page).into_iter();
        let mut next = || taken.next().expect("invariant: as many as are wanted");
        let (mut pairs, mut places) = (Vec::new(), vec![NOWHERE; tokens]);
        for (said, rows) in self.said.iter_mut().zip(documents) {
            if shared(&self.held, said, rows) {
                let last = said.pages.len() - 1;
                let own = next();
                self.held[said.pages[last] as usize] -= 1;
                pairs.push([std::mem::replace(&mut said.pages[last], own), own]);
            }
            said.pages.extend((0..new(said, rows)).map(|_| next()));
            for row in rows.clone() {
                places[row] = said.pages[said.len / PAGE] * PAGE as u32 + (said.len % PAGE) as u32;
                said.len += 1;
            }
        }
        if !pairs.is_empty() {
            self.pools = self.pools.take().map(|pools| kernels::duplicate_pages(pools, &pairs));
        }
        places
    }

    /// What rows of a pass see: the last rows of `documents` all that their sequences have said.
    fn seen(&self, documents: &[Range<usize>], tokens: usize, window: Option<usize>) -> Vec<PagedRow> {
        let mut rows = vec![PagedRow { low: 0, end: 0, table: 0 }; tokens];
        for (table, (said, own)) in self.said.iter().zip(documents).enumerate() {
            for (row, end) in own.clone().zip(said.len + 1 - own.len()..) {
                let low = window.map_or(0, |window| end.saturating_sub(window));
                rows[row] = PagedRow { low, end, table };
            }
        }
        rows
    }

    fn tables(&self) -> Vec<&[u32]> {
        self.said.iter().map(|said| said.pages.as_slice()).collect()
    }

    /// The memory of the pools, where they are.
    pub(crate) fn memory(&self) -> Option<[usize; 2]> {
        let [k, v] = self.pools.as_ref()?;
        Some([crate::cube::memory_of(k)?, crate::cube::memory_of(v)?])
    }

    /// Each sequence has said one more, in a step of `tokens` rows; none where nothing is said yet.
    pub(crate) fn step(&mut self, tokens: usize, window: Option<usize>) -> Option<StepRows> {
        let page = Page::of_pool(&self.pools.as_ref()?[0]);
        let documents: Vec<Range<usize>> = (0..self.said.len()).map(|row| row..row + 1).collect();
        let places = self.places(&documents, tokens, &page);
        let rows = self.seen(&documents, tokens, window);
        let mut tables = self.tables();
        tables.resize(tokens, &[]);
        let most = tables.iter().map(|table| table.len()).max().unwrap_or(0);
        let room = most.next_power_of_two().max(ROOM);
        Some(StepRows { places, rows: PagedRows::with_room(&rows, &tables, room) })
    }

    /// The step that was made of [`Self::step`]'s rows.
    pub(crate) fn attend_step(
        &mut self,
        qkv: &AnyTensor,
        shape: &AttentionShape,
        placed: &PlacedRows,
        rotary: Option<&Rotary>,
        norms: Option<&HeadNorm>,
        sinks: Option<&AnyTensor>,
    ) -> Result<AnyTensor, OpsError> {
        let qkv = qkv.plain();
        let whole = (placed.len(), &qkv.device(), wide_dtype(&qkv));
        let body = Body::new(shape, &Documents::default(), rotary, (norms, sinks), whole)?;
        let input = body.flash_input(&qkv)?;
        let pools = self.pools.take().expect("invariant: rows of a step are made where something is said");
        let pools = self.pools.insert(write(pools, &input, shape, placed.places.clone()));
        Ok(attend(&body, &input, pools, (&placed.rows, placed.words.clone())))
    }

    /// See [`crate::KvCache::attend`].
    pub(crate) fn attend(
        &mut self,
        qkv: &AnyTensor,
        shape: &AttentionShape,
        documents: &[Range<usize>],
        rotary: Option<&Rotary>,
        norms: Option<&HeadNorm>,
        sinks: Option<&AnyTensor>,
    ) -> Result<AnyTensor, OpsError> {
        let qkv = qkv.plain();
        let [tokens, _] = crate::check::matrix(&qkv)?;
        let (device, dtype) = (qkv.device(), qkv.burn_dtype());
        if tokens == 0 {
            let none = Tensor::<2>::zeros([0, shape.heads * shape.head_dim], (&device, dtype));
            return Ok(AnyTensor::new(none));
        }
        let whole = (tokens, &device, wide_dtype(&qkv));
        let body = Body::new(shape, &Documents::default(), rotary, (norms, sinks), whole)?;
        let input = body.flash_input(&qkv)?;
        let begins = self.said.iter().zip(documents).all(|(said, rows)| said.len == 0 || rows.is_empty());
        let places = self.places(documents, tokens, &Page::of(shape, &qkv));
        let Some(pools) = self.pools.take() else {
            let nothing = Tensor::<2>::zeros([tokens, shape.heads * shape.head_dim], (&device, dtype));
            return Ok(AnyTensor::new(nothing));
        };
        let pools = write(pools, &input, shape, kernels::words(&places, &device));
        let out = if begins {
            let flash = body
                .flash(&qkv, documents, None)
                .expect("invariant: there were kernels when this was opened");
            AnyTensor::new(flash.forward(&input).0)
        } else {
            let rows = PagedRows::new(&self.seen(documents, tokens, shape.window), &self.tables());
            let words = kernels::words(rows.words(), &device);
            attend(&body, &input, &pools, (&rows, words))
        };
        self.pools = Some(pools);
        Ok(out)
    }
}

/// The pools with the input's keys and values in their places.
fn write(pools: Pools, input: &kernels::FlashInput, shape: &AttentionShape, places: Tensor<1, Int>) -> Pools {
    kernels::write_pages(pools, input, (shape.heads, shape.kv_heads, shape.head_dim), places)
}

/// What the input's queries find in the pools.
fn attend(
    body: &Body,
    input: &kernels::FlashInput,
    pools: &Pools,
    rows: (&PagedRows, Tensor<1, Int>),
) -> AnyTensor {
    AnyTensor::new(kernels::attend_pages(input, &body.shape, pools, rows, body.flat_sinks().as_ref()))
}
