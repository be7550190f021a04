//! Rows of logits that stay where they were made: a draw reads what each block of them sums up to, and one block.

use std::ops::Range;

use burn::tensor::{DType, Int, Tensor, TensorData};
use burnish_gpu_kernels::{DRAW_BLOCK, DRAW_NUMBERS, logit_blocks, logits_of_blocks};

use crate::AnyTensor;
use crate::cube::{Inputs, launch};

/// Logits `[rows, vocab]` on a device.
#[derive(Clone, Debug)]
pub struct RestingLogits {
    z: AnyTensor,
    rows: usize,
    vocab: usize,
}

/// What a block of a row of `logit / temperature` says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitBlock {
    /// The largest.
    pub max: f32,
    /// The sum of `exp(logit / temperature - max)`; not finite where a logit is not.
    pub sum: f32,
    /// The first of the largest, by its place in the row.
    pub first: usize,
}

impl RestingLogits {
    /// `None` where no kernel reads them.
    pub(crate) fn new(z: AnyTensor) -> Option<Self> {
        let &[rows, vocab] = z.shape().as_slice() else { return None };
        Inputs::of(&[&z])?;
        (rows > 0 && vocab > 0).then_some(Self { z, rows, vocab })
    }

    /// How many rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Logits of a row.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// All of them on the host, `[rows, vocab]`.
    #[must_use]
    pub fn to_f32(&self) -> Vec<f32> {
        self.z.to_f32()
    }

    /// Each row's blocks, by a temperature for each row.
    ///
    /// # Panics
    /// If there are not as many temperatures.
    #[must_use]
    pub fn blocks(&self, temperatures: &[f32]) -> Vec<Vec<LogitBlock>> {
        assert_eq!(temperatures.len(), self.rows, "a temperature for each row");
        let temperatures = AnyTensor::from_elements(temperatures.to_vec(), &[self.rows], &self.z.device());
        let blocks = self.vocab.div_ceil(DRAW_BLOCK);
        let inputs = Inputs::of(&[&self.z, &temperatures])
            .expect("invariant: kernels read them, which was asked before, and f32");
        let shape = [self.rows, blocks, DRAW_NUMBERS];
        let [numbers] = launch(inputs, [(&shape, DType::F32)], |client, buffers| {
            [logit_blocks(client, &buffers[0], &buffers[1])]
        });
        let numbers = numbers.to_f32();
        let block = |(at, numbers): (usize, &[f32])| LogitBlock {
            max: numbers[0],
            sum: numbers[1],
            first: at * DRAW_BLOCK + numbers[2] as usize,
        };
        let row = |row: &[f32]| row.chunks(DRAW_NUMBERS).enumerate().map(block).collect();
        numbers.chunks(blocks * DRAW_NUMBERS).map(row).collect()
    }

    /// The logits of one block of each row.
    ///
    /// # Panics
    /// If there is not a block for each row.
    #[must_use]
    pub fn of_blocks(&self, blocks: &[usize]) -> Vec<Vec<f32>> {
        assert_eq!(blocks.len(), self.rows, "a block for each row");
        let indices = blocks.iter().map(|&block| block as i32).collect();
        let data = TensorData::new(indices, [self.rows]);
        let indices = Tensor::<1, Int>::from_data(data, (&self.z.device(), DType::I32));
        let inputs = Inputs::of(&[&self.z]).expect("invariant: kernels read them, which was asked before");
        let inputs = inputs.and_integers(indices);
        let [logits] = launch(inputs, [(&[self.rows, DRAW_BLOCK], DType::F32)], |client, buffers| {
            [logits_of_blocks(client, &buffers[0], &buffers[1])]
        });
        let logits = logits.to_f32();
        let own = |(logits, &block): (&[f32], &usize)| logits[..self.block(block).len()].to_vec();
        logits.chunks(DRAW_BLOCK).zip(blocks).map(own).collect()
    }

    /// Where in a row a block is.
    #[must_use]
    pub fn block(&self, block: usize) -> Range<usize> {
        block * DRAW_BLOCK..self.vocab.min((block + 1) * DRAW_BLOCK)
    }
}
