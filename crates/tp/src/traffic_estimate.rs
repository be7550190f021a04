//! `TrafficEstimate`: elements and calls of tensor-parallel collectives, predicted.

use std::ops::Range;

use burnish_comm::{Op, Traffic};
use burnish_core::Dtype;

use crate::partial::{PARTIAL_BUCKET, WireLayout, buckets};
use crate::{TpError, TpLayout};

/// The collectives that operations on a [`Tp`](crate::Tp) of some ranks will make, counted as
/// [`Group::traffic`](burnish_comm::Group::traffic) counts them. One rank makes none.
///
/// ```
/// use burn::tensor::Device;
/// use burnish_comm::local;
/// use burnish_ops::AnyTensor;
/// use burnish_tp::{TrafficEstimate, Tp};
///
/// let mut forecast = TrafficEstimate::new(2);
/// forecast.reduce_from_tp(6, 1);
/// for moved in local::run(2, |world| {
///     let tp = Tp::new(&world.group());
///     tp.reduce_from_tp(&AnyTensor::from_elements(vec![1.0_f32; 6], &[2, 3], &Device::flex()), "down").unwrap();
///     world.group().traffic()
/// }) {
///     assert_eq!(&moved.unwrap(), forecast.traffic());
/// }
/// ```
#[derive(Clone, Debug)]
pub struct TrafficEstimate {
    ranks: usize,
    traffic: Traffic,
}

impl TrafficEstimate {
    /// Nothing so far, over `ranks` ranks.
    #[must_use]
    pub fn new(ranks: usize) -> Self {
        Self { ranks, traffic: Traffic::default() }
    }

    /// [`Tp::copy_to_tp`](crate::Tp::copy_to_tp) of `elements`, in backward, `times` times.
    pub fn copy_to_tp(&mut self, elements: usize, times: usize) {
        self.add(Op::AllReduce, Dtype::F32, elements, times);
    }

    /// [`Tp::reduce_from_tp`](crate::Tp::reduce_from_tp), [`Tp::reduce_from_tp_add`](crate::Tp::reduce_from_tp_add) or [`Tp::embedding`](crate::Tp::embedding) to `elements`, in
    /// forward, `times` times: a forward that is repeated in backward counts again.
    pub fn reduce_from_tp(&mut self, elements: usize, times: usize) {
        self.add(Op::AllReduce, Dtype::F32, elements, times);
    }

    /// As [`Self::copy_to_tp`], of `elements` in all, in `calls` calls.
    pub fn copy_to_tp_in(&mut self, elements: usize, calls: usize) {
        self.reduce_from_tp_in(elements, calls);
    }

    /// As [`Self::reduce_from_tp`], of `elements` in all, in `calls` calls.
    pub fn reduce_from_tp_in(&mut self, elements: usize, calls: usize) {
        if self.ranks > 1 && calls > 0 {
            self.traffic.add(Op::AllReduce, Dtype::F32, calls as u64, elements as u64);
        }
    }

    /// [`Tp::gather_columns`](crate::Tp::gather_columns) of outputs of `elements` in all, in forward, in `calls` calls.
    pub fn gather_columns(&mut self, elements: usize, calls: usize) {
        if self.ranks > 1 && calls > 0 {
            self.traffic.add(Op::AllGather, Dtype::F32, calls as u64, elements as u64);
        }
    }

    /// [`Tp::summed`](crate::Tp::summed) of `elements`, `times` times.
    pub fn summed(&mut self, elements: usize, times: usize) {
        self.add(Op::AllReduce, Dtype::F32, elements, times);
    }

    /// [`Tp::all_gather`](crate::Tp::all_gather) of `elements` from each rank in all, in `calls` calls.
    pub fn all_gather(&mut self, elements: usize, calls: usize) {
        if self.ranks > 1 {
            let all = self.ranks * elements;
            self.traffic.add(Op::AllGather, Dtype::F32, calls as u64, all as u64);
        }
    }

    /// What [`TokenDispatcher::new`](crate::TokenDispatcher::new) moves, `calls` times, of `rows` rows in all with `per_token`
    /// experts each.
    pub fn route_tokens(&mut self, rows: u64, per_token: usize, calls: usize) {
        if self.ranks > 1 {
            let (calls, counts) = (calls as u64, (self.ranks * self.ranks) as u64);
            self.traffic.add(Op::AllGather, Dtype::I64, calls, calls * counts);
            self.traffic.add(Op::AllToAll, Dtype::I64, calls, rows * per_token as u64);
        }
    }

    /// What [`TokenDispatcher::dispatch`](crate::TokenDispatcher::dispatch) or [`combine`](crate::TokenDispatcher::combine)
    /// sends, forward or backward, of `rows` rows in all in `calls` calls.
    pub fn send_tokens(&mut self, rows: u64, features: usize, calls: usize) {
        if self.ranks > 1 {
            self.traffic.add(Op::AllToAll, Dtype::F32, calls as u64, rows * features as u64);
        }
    }

    /// [`Tp::sum_f64`](crate::Tp::sum_f64) of `values` scalars.
    pub fn sum_f64(&mut self, values: usize) {
        self.add(Op::AllReduce, Dtype::F64, values, 1);
    }

    /// [`Tp::sum_partial`](crate::Tp::sum_partial) of gradients of these rows (dimension 0) of what `rank` holds, in that
    /// order.
    ///
    /// # Errors
    /// [`TpError::Rows`]: rows that not all ranks would give.
    pub fn sum_partial<'a>(
        &mut self,
        rank: usize,
        gradients: impl IntoIterator<Item = (&'a str, &'a TpLayout, Range<usize>)>,
    ) -> Result<(), TpError> {
        let wired = |(index, (name, layout, rows)): (usize, (&str, &TpLayout, Range<usize>))| {
            let wired = WireLayout::of(layout, &rows, rank);
            let wired = wired.map_err(|row| TpError::Rows { what: name.to_owned(), rows, row });
            wired.map(|wired| Some((index, wired?))).transpose()
        };
        let pieces: Vec<_> = gradients.into_iter().enumerate().filter_map(wired).collect::<Result<_, _>>()?;
        for (elements, _) in buckets(pieces, PARTIAL_BUCKET) {
            self.add(Op::AllReduce, Dtype::F32, elements, 1);
        }
        Ok(())
    }

    /// Adds what ranks of another axis move.
    pub fn merge(&mut self, other: &Self) {
        self.traffic.merge(&other.traffic);
    }

    /// What it comes to.
    #[must_use]
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    fn add(&mut self, op: Op, dtype: Dtype, elements: usize, times: usize) {
        if self.ranks > 1 && times > 0 {
            self.traffic.add(op, dtype, times as u64, (elements * times) as u64);
        }
    }
}
