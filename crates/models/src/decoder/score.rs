//! Scores of whole texts: the reward models of Transformers' `*ForSequenceClassification`.

use std::sync::Arc;

use burnish_ops::{AnyTensor, LinearInput, linears, select_rows};

use crate::spec::Output;
use crate::{Decoder, ForwardContext, ModelError, Tokens};

impl Decoder {
    /// The score of each document, `[documents]`, from the final hidden state of its last token; on the pass's tape when
    /// that trains.
    ///
    /// Of several tensor-parallel ranks each computes every score.
    ///
    /// ```no_run
    /// # use burn::tensor::Device;
    /// # use burnish_models::{Mode, Tokens, load};
    /// let model = load("path/to/reward-model", &Device::flex()).unwrap().decoder;
    /// let tokens = Tokens::from_sequences(&[vec![1, 2, 3], vec![4, 5]]);
    /// let rewards = model.rewards(&tokens, &model.pass(Mode::Score)).unwrap().to_f32();
    /// assert_eq!(rewards.len(), 2);
    /// ```
    ///
    /// # Errors
    /// If the model gives logits instead, a document is empty, or a tensor does not fit.
    pub fn rewards(&self, tokens: &Tokens, pass: &ForwardContext) -> Result<AnyTensor, ModelError> {
        self.check_output(Output::Score)?;
        let mut last = Vec::with_capacity(tokens.documents.len());
        for (row, document) in tokens.documents.iter().enumerate() {
            if document.is_empty() {
                return Err(ModelError::EmptyDocument { row });
            }
            last.push(document.end - 1);
        }
        // Dropout counts tokens; a pass without it may leave them out.
        let rows = last.iter().filter_map(|&at| tokens.rows.get(at).copied()).collect();
        let hidden = self.hidden(tokens, pass)?;
        let hidden = select_rows(&hidden, &Arc::new(last))?;
        let hidden = self.final_norm(&hidden, pass)?;
        let score = self.head_linear(pass, &Arc::new(rows))?;
        let scores = linears(&LinearInput::Plain(hidden), &[score], None)?.rank::<2>()?;
        let documents = scores.dims()[0];
        Ok(AnyTensor::new(scores.reshape([documents])))
    }
}
