//! Tensor parallelism: the ranks of one mesh axis share each layer, on the same rows of data.
//!
//! * [`TpPlan`] and [`Style`]: which layers are divided how, as data, in Transformers' spelling.
//! * [`Split`] and [`HeadSplit`]: one dimension over the ranks, uneven, packed or shared by some; pure arithmetic.
//! * [`Placement`]: where a tensor of a divided layer lies (weight, bias, adapter factors, magnitude), from global shapes,
//!   and what a rank's [`Gradient`] of it is.
//! * [`Tp`]: a rank's handle. [`f`](Tp::f) before and [`g`](Tp::g) after divided layers are operations under autodiff,
//!   also inside a segment that is run again; so are [`gather_columns`](Tp::gather_columns),
//!   [`scatter_columns`](Tp::scatter_columns) and the vocabulary-parallel [`embedding`](Tp::embedding).
//! * [`Tp::sum_partial`]: gradients that are addends, summed once per step.
//! * [`Forecast`]: what all that will move, to the element.
//! * [`Tp::columns_to_rows`] and back: files hold rows of the whole matrix, whatever the ranks were.
//!
//! A row-parallel layer runs on a rank's columns together with its adapter, and one sum serves both:
//! `sum over ranks of (x W^T + s x A^T B^T)`. The gradients of what is replicated in it (`B`, biases), and of what is
//! replicated in front of a column-parallel layer (`A`, a norm), are therefore addends: [`Gradient::Partial`]. Where a step
//! has few tokens [`AdapterReduce`] sums the adapter's activations of rank r instead.
//!
//! An MLP on two ranks, with an adapter on its second layer:
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use burnish_comm::local;
//! use burnish_ops::{AnyTensor, Linear, LinearInput, LowRank, linears};
//! use burnish_tp::{Addend, Part, Placement, Split, Style, Tp};
//!
//! fn ramp(n: usize) -> Vec<f32> {
//!     (0..n).map(|i| (i % 7) as f32 * 0.1 - 0.3).collect()
//! }
//!
//! // 4 features, 5 in between
//! let gradients = |ranks: usize| {
//!     local::run(ranks, |world| {
//!         let tp = Tp::new(&world.group());
//!         let inner = Split::balanced(5, tp.size())?;
//!         let device = Device::flex();
//!         // a rank makes its part of each tensor
//!         let part = |style, part, shape: &[usize]| {
//!             let placement = Placement::of(style, part, shape, &inner)?;
//!             let own = placement.shard(&ramp(shape.iter().product()), tp.rank());
//!             let own = AnyTensor::from_elements(own, &placement.local_shape(tp.rank()), &device).leaf();
//!             Ok::<_, burnish_tp::TpError>((own, placement))
//!         };
//!         let (up, _) = part(Style::Colwise, Part::Weight, &[5, 4])?;
//!         let (down, _) = part(Style::Rowwise, Part::Weight, &[4, 5])?;
//!         let (a, _) = part(Style::Rowwise, Part::LoraA, &[2, 5])?;
//!         let (b, b_placement) = part(Style::Rowwise, Part::LoraB, &[4, 2])?;
//!         let x = AnyTensor::from_elements(ramp(12), &[3, 4], &device).leaf();
//!
//!         let h = linears(&LinearInput::Plain(tp.f(&x, "up")?), &[Linear::new(up)], None)?;
//!         let low_rank = Some(LowRank { a, b: b.clone(), b_bias: None, scale: 2.0, dropout: None, magnitude: None });
//!         let y = linears(&LinearInput::Plain(h), &[Linear { weight: down, bias: None, low_rank }], None)?;
//!         let y = tp.g_add(&y, &x, "down")?;
//!
//!         let mut gradients = y.rank::<2>()?.powi_scalar(2).sum().backward();
//!         let gradient = b.take_gradient(&mut gradients).expect("`b` is a leaf");
//!         let mut sum = [Addend { name: "down.lora_B", placement: &b_placement, rows: 0..4, gradient }];
//!         tp.sum_partial(&mut sum)?;
//!         tp.check()?;
//!         Ok::<_, Box<dyn std::error::Error + Send + Sync>>(sum[0].gradient.to_f32())
//!     })
//! };
//! let one = gradients(1).remove(0).unwrap().unwrap();
//! for two in gradients(2) {
//!     for (one, two) in one.iter().zip(two.unwrap().unwrap()) {
//!         assert!((one - two).abs() < 1e-6);
//!     }
//! }
//! ```

mod adapters;
mod columns;
mod conjugates;
mod error;
mod forecast;
mod handle;
mod heads;
mod partial;
mod placement;
mod plan;
mod reshard;
mod select;
mod split;
mod style;
mod vocabulary;

pub use adapters::{AdapterReduce, AdapterSum, AdapterSums};
pub use error::TpError;
pub use forecast::Forecast;
pub use handle::Tp;
pub use heads::{HeadSplit, RankHeads};
pub use partial::{Addend, PARTIAL_BUCKET};
pub use placement::{Gradient, Part, Placement};
pub use plan::TpPlan;
pub use split::Split;
pub use style::Style;
pub use vocabulary::LocalIds;
