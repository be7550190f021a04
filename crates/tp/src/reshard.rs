//! Columns of a matrix on each rank, and rows of it: from one to the other.

use std::ops::Range;
use std::sync::Arc;

use burnish_comm::{Bucket, Wire};
use burnish_core::{Dtype, Split};
use burnish_ops::{AnyTensor, Elements, Scalar};

use crate::{Tp, TpError};

/// A type that files hold.
trait Number: Scalar + Wire + Default {}
impl Number for f32 {}
impl Number for half::bf16 {}
impl Number for half::f16 {}

/// Runs `$body` with `$E` as the type of a tensor's dtype.
macro_rules! by_dtype {
    ($what:expr, $tensor:expr, $E:ident => $body:expr) => {
        match $tensor.dtype() {
            Some(Dtype::F32) => {
                type $E = f32;
                $body
            }
            Some(Dtype::Bf16) => {
                type $E = half::bf16;
                $body
            }
            Some(Dtype::F16) => {
                type $E = half::f16;
                $body
            }
            got => {
                Err(TpError::Dtype { what: $what.to_owned(), got, expected: "float32, bfloat16 or float16" })
            }
        }
    };
}

impl Tp {
    /// From rows `rows` of this rank's columns to whole rows of the matrix: which ones, and they. For saving; every rank
    /// calls it with the same rows, which are dealt out evenly.
    ///
    /// # Shapes
    /// - columns: `[rows.len(), split.len(rank)]`, output: `[own.len(), split.length()]`, in f32, bf16 or f16. One
    ///   all-to-all; every element is sent once.
    ///
    /// # Errors
    /// Another shape or dtype, ranks that differ, a rank that fails; the first error of this handle.
    pub fn columns_to_rows(
        &self,
        columns: &AnyTensor,
        rows: Range<usize>,
        split: &Split,
        what: &str,
    ) -> Result<(Range<usize>, AnyTensor), TpError> {
        self.check()?;
        self.expect_matrix(columns, rows.len(), split, split.len(self.rank().min(split.ranks() - 1)), what)?;
        if self.size() == 1 {
            return Ok((rows, columns.plain()));
        }
        by_dtype!(what, columns, E => self.exchange_columns::<E>(columns, rows, split, what))
    }

    /// From this rank's rows of a matrix (those that [`columns_to_rows`](Self::columns_to_rows) gives of `rows`) to all of
    /// those rows of its columns. For loading.
    ///
    /// # Shapes
    /// - own: `[own rows, split.length()]`, output: `[rows.len(), split.len(rank)]`, in f32, bf16 or f16. One all-to-all;
    ///   every element is sent once (to each of the ranks that share it).
    ///
    /// # Errors
    /// As [`columns_to_rows`](Self::columns_to_rows).
    pub fn rows_to_columns(
        &self,
        own: &AnyTensor,
        rows: Range<usize>,
        split: &Split,
        what: &str,
    ) -> Result<AnyTensor, TpError> {
        self.check()?;
        self.expect_matrix(own, self.own_rows(&rows).len(), split, split.length(), what)?;
        if self.size() == 1 {
            return Ok(own.plain());
        }
        by_dtype!(what, own, E => self.exchange_rows::<E>(own, rows, split, what))
    }

    /// The rows of `rows` that this rank has when they are dealt out evenly.
    #[must_use]
    pub fn own_rows(&self, rows: &Range<usize>) -> Range<usize> {
        let own = Split::balanced_range(rows.len(), self.size(), self.rank());
        rows.start + own.start..rows.start + own.end
    }

    fn expect_matrix(
        &self,
        x: &AnyTensor,
        rows: usize,
        split: &Split,
        columns: usize,
        what: &str,
    ) -> Result<(), TpError> {
        let what = what.to_owned();
        if split.ranks() != self.size() {
            return Err(TpError::Ranks { what, placed: split.ranks(), group: self.size() });
        }
        let (got, expected) = (x.shape(), vec![rows, columns]);
        if got == expected { Ok(()) } else { Err(TpError::Shape { what, got, expected }) }
    }

    fn exchange_columns<E: Number>(
        &self,
        columns: &AnyTensor,
        rows: Range<usize>,
        split: &Split,
        what: &str,
    ) -> Result<(Range<usize>, AnyTensor), TpError> {
        let (ranks, width) = (self.size(), split.length());
        let own = self.own_rows(&rows);
        let send: Vec<usize> = (0..ranks)
            .map(|r| Split::balanced_range(rows.len(), ranks, r).len() * split.len(self.rank()))
            .collect();
        let receive: Vec<usize> = (0..ranks).map(|r| own.len() * split.len(r)).collect();
        // blocks of rows lie one after another as they are
        let bucket = Bucket::shared(Arc::new(elements::<E>(columns)));
        let what = format!("{what}: rows {}..{} from columns", rows.start, rows.end);
        let parts = self.kept(self.files().all_to_all_v(bucket, &send, &receive, &what).wait())?;
        let mut out = vec![E::default(); own.len() * width];
        for (rank, part) in parts.iter().enumerate().filter(|(_, part)| !part.is_empty()) {
            for (to, mut from) in out.chunks_exact_mut(width).zip(part.chunks_exact(split.len(rank))) {
                for piece in split.pieces(rank) {
                    let (now, rest) = from.split_at(piece.len());
                    to[piece.clone()].copy_from_slice(now);
                    from = rest;
                }
            }
        }
        let shape = [own.len(), width];
        Ok((own, AnyTensor::from_elements(out, &shape, &columns.device())))
    }

    fn exchange_rows<E: Number>(
        &self,
        own: &AnyTensor,
        rows: Range<usize>,
        split: &Split,
        what: &str,
    ) -> Result<AnyTensor, TpError> {
        let (ranks, mine) = (self.size(), split.len(self.rank()));
        let held = own.shape()[0];
        let send: Vec<usize> = (0..ranks).map(|r| held * split.len(r)).collect();
        let receive: Vec<usize> =
            (0..ranks).map(|r| Split::balanced_range(rows.len(), ranks, r).len() * mine).collect();
        let values = elements::<E>(own);
        let mut wire = Vec::with_capacity(send.iter().sum());
        for rank in 0..ranks {
            for row in values.chunks_exact(split.length().max(1)) {
                for piece in split.pieces(rank) {
                    wire.extend_from_slice(&row[piece.clone()]);
                }
            }
        }
        let what = format!("{what}: columns from rows {}..{}", rows.start, rows.end);
        let parts = self.kept(self.files().all_to_all_v(Bucket::new(wire), &send, &receive, &what).wait())?;
        let out = parts.concat().into_vec();
        Ok(AnyTensor::from_elements(out, &[rows.len(), mine], &own.device()))
    }
}

fn elements<E: Number>(x: &AnyTensor) -> Elements<E> {
    x.elements::<E>().expect("invariant: a tensor of the dtype that chose the type")
}
