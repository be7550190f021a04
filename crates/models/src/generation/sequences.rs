//! `Sequences` in progress, with the cache of each layer: keys and values, products of convolutions, states.

use burnish_ops::{ConvCache, KvCache, OpsError};

use crate::Decoder;
use crate::decoder::state_cache::StateCache;
use crate::spec::LayerSpec;

/// What the layers have seen of some sequences.
pub(super) struct Sequences {
    pub(super) caches: Vec<Cache>,
    /// Of blocks with a state space.
    pub(super) scans: Vec<Option<StateCache>>,
    pub(super) lengths: Vec<usize>,
    /// The tokens of each.
    pub(super) ids: Vec<Vec<u32>>,
    /// Where an adapter that waits for tokens begins to act in each.
    pub(super) begins: Vec<Option<usize>>,
    /// Which adapter each has, where the decoder has several.
    pub(super) adapters: Vec<Option<usize>>,
}

impl Sequences {
    pub(super) fn new(decoder: &Decoder, count: usize) -> Self {
        let cache = |(at, layer): (usize, &LayerSpec)| match decoder.spec.conv {
            _ if layer.no_attention => Cache::Nothing,
            _ if layer.delta => {
                let taps = decoder.spec.delta.map_or(1, |delta| delta.taps);
                Cache::State(Box::new(StateCache::new(taps, count)))
            }
            Some(conv) if layer.conv => Cache::Products(Box::new(ConvCache::new(conv.taps, count))),
            _ => Cache::Keys(KvCache::new(decoder.attention_shape(at), count)),
        };
        let of_ssd = decoder.spec.ssd;
        let scan =
            |layer: &LayerSpec| of_ssd.filter(|_| layer.ssd).map(|ssd| StateCache::new(ssd.taps, count));
        Self {
            caches: decoder.spec.layers.iter().enumerate().map(cache).collect(),
            scans: decoder.spec.layers.iter().map(scan).collect(),
            lengths: vec![0; count],
            ids: vec![Vec::new(); count],
            begins: vec![None; count],
            adapters: vec![None; count],
        }
    }

    /// Sequences have said these too.
    pub(super) fn said<S: AsRef<[u32]>>(&mut self, new: &[S]) {
        for ((length, ids), tokens) in self.lengths.iter_mut().zip(&mut self.ids).zip(new) {
            *length += tokens.as_ref().len();
            ids.extend_from_slice(tokens.as_ref());
        }
    }

    /// Bytes of what is held.
    pub(super) fn bytes(&self) -> usize {
        let scans = self.scans.iter().flatten().map(StateCache::bytes);
        self.caches.iter().map(Cache::bytes).chain(scans).sum()
    }

    pub(super) fn reorder(&mut self, order: &[usize]) -> Result<(), OpsError> {
        for cache in &mut self.caches {
            cache.reorder(order)?;
        }
        for scan in self.scans.iter_mut().flatten() {
            scan.reorder(order)?;
        }
        self.lengths = order.iter().map(|&o| self.lengths[o]).collect();
        self.ids = order.iter().map(|&o| self.ids[o].clone()).collect();
        self.begins = order.iter().map(|&o| self.begins[o]).collect();
        self.adapters = order.iter().map(|&o| self.adapters[o]).collect();
        Ok(())
    }

    pub(super) fn append(&mut self, other: Self) {
        self.caches.iter_mut().zip(other.caches).for_each(|(cache, more)| cache.append(more));
        let scans = self.scans.iter_mut().zip(other.scans);
        scans.for_each(|(scan, more)| {
            if let (Some(scan), Some(more)) = (scan, more) {
                scan.append(more);
            }
        });
        self.lengths.extend(other.lengths);
        self.ids.extend(other.ids);
        self.begins.extend(other.begins);
        self.adapters.extend(other.adapters);
    }

    pub(super) fn split_off(&mut self, at: usize) -> Self {
        let caches = self.caches.iter_mut().map(|cache| cache.split_off(at)).collect();
        let scans = self.scans.iter_mut().map(|scan| Some(scan.as_mut()?.split_off(at))).collect();
        let (lengths, ids) = (self.lengths.split_off(at), self.ids.split_off(at));
        let (begins, adapters) = (self.begins.split_off(at), self.adapters.split_off(at));
        Self { caches, scans, lengths, ids, begins, adapters }
    }
}

/// What one layer has seen.
pub(super) enum Cache {
    /// Attention's keys and values.
    Keys(KvCache),
    /// What a convolution reads of the last tokens.
    Products(Box<ConvCache>),
    /// What a delta rule remembers.
    State(Box<StateCache>),
    /// A block without attention.
    Nothing,
}

impl Cache {
    fn reorder(&mut self, order: &[usize]) -> Result<(), OpsError> {
        match self {
            Self::Keys(cache) => cache.reorder(order),
            Self::Products(cache) => cache.reorder(order),
            Self::State(cache) => cache.reorder(order),
            Self::Nothing => Ok(()),
        }
    }

    fn append(&mut self, more: Self) {
        match (self, more) {
            (Self::Keys(cache), Self::Keys(more)) => cache.append(more),
            (Self::Products(cache), Self::Products(more)) => cache.append(*more),
            (Self::State(cache), Self::State(more)) => cache.append(*more),
            (Self::Nothing, Self::Nothing) => {}
            _ => unreachable!("invariant: caches of one layer are of one kind"),
        }
    }

    fn split_off(&mut self, at: usize) -> Self {
        match self {
            Self::Keys(cache) => Self::Keys(cache.split_off(at)),
            Self::Products(cache) => Self::Products(Box::new(cache.split_off(at))),
            Self::State(cache) => Self::State(Box::new(cache.split_off(at))),
            Self::Nothing => Self::Nothing,
        }
    }

    /// What it has of each sequence that does not grow.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    pub(super) fn rows(&mut self) -> Vec<&mut burnish_ops::SequenceRows> {
        match self {
            Self::Products(cache) => vec![cache.rows()],
            Self::State(cache) => cache.rows().into(),
            Self::Keys(_) | Self::Nothing => Vec::new(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Keys(cache) => cache.bytes(),
            Self::Products(cache) => cache.bytes(),
            Self::State(cache) => cache.bytes(),
            Self::Nothing => 0,
        }
    }
}
