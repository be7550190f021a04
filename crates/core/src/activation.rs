//! `Activation`: the elementwise functions between the linears of a feed-forward.

/// An elementwise function, of a feed-forward's gate or of its inner layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    #[default]
    Silu,
    /// `x * Phi(x)`, with the normal distribution's `Phi`.
    Gelu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2`.
    Relu2,
}

impl Activation {
    /// The words of [`Self::of_word`].
    pub const WORDS: &'static str =
        "silu, swish, gelu, gelu_python, gelu_new, gelu_pytorch_tanh, gelu_fast, gelu_accurate, relu, relu2";

    /// The function that Transformers means by a word.
    ///
    /// ```
    /// use burnish_core::Activation;
    ///
    /// assert_eq!(Activation::of_word("gelu_new"), Some(Activation::GeluTanh));
    /// assert_eq!(Activation::of_word("softplus"), None);
    /// ```
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        Some(match word {
            "silu" | "swish" => Self::Silu,
            "gelu" | "gelu_python" => Self::Gelu,
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_python_tanh" | "gelu_fast" | "gelu_accurate" => {
                Self::GeluTanh
            }
            "relu" => Self::Relu,
            "relu2" => Self::Relu2,
            _ => return None,
        })
    }
}
