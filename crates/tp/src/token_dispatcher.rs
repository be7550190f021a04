//! Tokens of a mixture sent to the ranks that have their experts, and what those make of them back: expert parallelism
//! over ranks with tokens of their own.

use std::sync::Arc;

use burnish_comm::Bucket;
use burnish_core::{ELSEWHERE, Split};
use burnish_ops::{AnyTensor, Elements, OpsError, all_joined, apply, select_rows};
use burnish_tensor_comm::{bucket, tensors};

use crate::Tp;
use crate::handle::{expect_f32, expect_shape, zeros};
use crate::index_select::{lines, matrix, select, shaped};

const OP: &str = "experts on other ranks";

/// Where the tokens of one pass through a mixture go. A token is sent once to each rank that has some of its experts, so at
/// most to as many as it has experts, and comes back as the sum of what they made of it there: Rajbhandari et al.,
/// "DeepSpeed-MoE", arXiv:2201.05596, section 5, without capacity.
///
/// Cheap to clone. As all operations on a [`Tp`] it is made and used in the same order on every rank; how many tokens each
/// has may differ, and be none.
///
/// ```
/// use burn::tensor::Device;
/// use burnish_comm::local;
/// use burnish_ops::AnyTensor;
/// use burnish_tp::{Split, TokenDispatcher, Tp};
///
/// // two experts on two ranks; each rank has a token, which goes to expert 1
/// let back = local::run(2, |world| {
///     let tp = Tp::new(&world.group());
///     let there = TokenDispatcher::new(&tp, &[1], 1, &Split::balanced(2, 2)?, "experts")?;
///     let x = AnyTensor::from_elements(vec![tp.rank() as f32], &[1, 1], &Device::flex());
///     let received = there.dispatch(&x)?;
///     assert_eq!(received.shape(), [if tp.rank() == 1 { 2 } else { 0 }, 1]);
///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(there.combine(&received)?.to_f32())
/// });
/// let back: Vec<_> = back.into_iter().map(|rank| rank.unwrap().unwrap()).collect();
/// assert_eq!(back, [[0.0], [1.0]]);
/// ```
#[derive(Clone, Debug)]
pub struct TokenDispatcher {
    route: Arc<Route>,
}

#[derive(Debug)]
struct Route {
    ranks: Tp,
    what: String,
    /// This rank's tokens.
    tokens: usize,
    /// Of each row that is sent its token, those for the first rank first.
    rows: Arc<Vec<usize>>,
    /// Rows for and from each rank.
    send: Vec<usize>,
    receive: Vec<usize>,
    /// Experts of the rows that came, counted from this rank's first.
    experts: Arc<Vec<u32>>,
}

impl TokenDispatcher {
    /// For tokens with `per_token` `experts` each, of which `owners` says what rank has them; nothing is sent for those that none
    /// of these ranks has, or that are [`ELSEWHERE`](burnish_core::ELSEWHERE). `what`, the layer's name, appears in errors.
    ///
    /// # Collectives
    /// An all-gather of the numbers of rows, an all-to-all of their experts.
    ///
    /// # Errors
    /// An expert that there is none of; owners for another number of ranks, or not in one piece each. What goes wrong
    /// between ranks is kept ([`Tp::check`]), and nothing comes.
    pub fn new(
        ranks: &Tp,
        experts: &[u32],
        per_token: usize,
        owners: &Split,
        what: &str,
    ) -> Result<Self, OpsError> {
        expect_shape(OP, "owners of experts", vec![owners.ranks()], &[ranks.size()])?;
        let each = per_token.max(1);
        let first = |rank: usize| owners.range(rank).map_or(0, |own| own.start);
        let mut owner = vec![None; owners.length()];
        for rank in 0..owners.ranks() {
            owners.pieces(rank).iter().cloned().flatten().for_each(|expert| owner[expert] = Some(rank));
        }
        let known = |&expert: &u32| match owner.get(expert as usize) {
            Some(rank) => Ok(*rank),
            None if expert == ELSEWHERE => Ok(None),
            None => Err(OpsError::Index { op: OP, got: expert as usize, limit: owner.len() }),
        };
        let found = experts.iter().map(known).collect::<Result<Vec<_>, _>>()?;
        let (mut rows, mut numbers, mut send) = (Vec::new(), Vec::new(), Vec::new());
        for rank in 0..ranks.size() {
            let before = rows.len();
            for (token, (of, there)) in experts.chunks(each).zip(found.chunks(each)).enumerate() {
                if !there.contains(&Some(rank)) {
                    continue;
                }
                rows.push(token);
                numbers.extend(of.iter().zip(there).map(|(&expert, &on)| {
                    u64::from(if on == Some(rank) { expert - first(rank) as u32 } else { ELSEWHERE })
                }));
            }
            send.push(rows.len() - before);
        }
        let nothing = || (vec![0; ranks.size()], Vec::new());
        let (receive, came) = agreed(ranks, numbers, &send, each, what).unwrap_or_else(nothing);
        // What came is said by other ranks: none of this rank's experts has another number.
        let own = owners.len(ranks.rank()) as u64;
        if let Some(&got) = came.iter().find(|&&expert| expert >= own && expert != u64::from(ELSEWHERE)) {
            return Err(OpsError::Index { op: OP, got: got as usize, limit: own as usize });
        }
        let route = Route {
            ranks: ranks.clone(),
            what: what.to_owned(),
            tokens: experts.len() / each,
            rows: Arc::new(rows),
            send,
            receive,
            experts: Arc::new(came.into_iter().map(|expert| expert as u32).collect()),
        };
        Ok(Self { route: Arc::new(route) })
    }

    /// The rows that `tokens` tokens send and are sent, where every set of `per_token` experts is as likely as every other; a
    /// router's choices make them more or less, at most as many for each token as it has experts.
    #[must_use]
    pub fn even_rows(tokens: usize, per_token: usize, owners: &Split) -> f64 {
        let all = owners.length();
        // That none of a token's experts is among those of a rank.
        let none = |own: usize| -> f64 {
            (0..per_token)
                .map(|i| all.saturating_sub(own + i) as f64 / all.saturating_sub(i).max(1) as f64)
                .product()
        };
        let ranks: f64 = (0..owners.ranks()).map(|rank| 1.0 - none(owners.len(rank))).sum();
        tokens as f64 * ranks
    }

    /// Experts of the tokens that came, as many each as theirs had, counted from this rank's first;
    /// [`ELSEWHERE`](burnish_core::ELSEWHERE) for those of other ranks.
    #[must_use]
    pub fn experts(&self) -> &Arc<Vec<u32>> {
        &self.route.experts
    }

    /// The rows of `x` that this rank has experts for, those of the first rank first. In backward their gradients go back,
    /// and those of a token that went to several ranks are added, in the order of ranks.
    ///
    /// # Shapes
    /// - x: `[tokens, features]` in f32, output: `[tokens that came, features]`
    ///
    /// # Collectives
    /// An all-to-all in forward, one in backward.
    ///
    /// # Errors
    /// If `x` has another number of tokens, or is not of f32.
    pub fn dispatch(&self, x: &AnyTensor) -> Result<AnyTensor, OpsError> {
        self.check(x, self.route.tokens)?;
        apply("dispatch", std::slice::from_ref(x), |plain, _| {
            let out = self.route.sent(&plain[0], "tokens")?;
            let route = self.route.clone();
            let backward =
                move |upstream: AnyTensor| vec![Some(route.returned(&upstream, "their gradients"))];
            Ok((out, Box::new(backward)))
        })
    }

    /// What the ranks with experts made of this rank's tokens, added in the order of ranks. In backward a token's gradient
    /// goes to each of them.
    ///
    /// # Shapes
    /// - y: `[tokens that came, features]` in f32, output: `[tokens, features]`
    ///
    /// # Collectives
    /// As [`Self::dispatch`].
    ///
    /// # Errors
    /// If `y` has another number of rows, or is not of f32.
    pub fn combine(&self, y: &AnyTensor) -> Result<AnyTensor, OpsError> {
        self.check(y, self.route.receive.iter().sum())?;
        apply("combine", std::slice::from_ref(y), |plain, _| {
            let out = self.route.returned(&plain[0], "outputs");
            let route = self.route.clone();
            let backward = move |upstream: AnyTensor| {
                let sent = route.sent(&upstream, "gradients of outputs");
                vec![Some(sent.unwrap_or_else(|_| route.none(&upstream)))]
            };
            Ok((out, Box::new(backward)))
        })
    }

    fn check(&self, x: &AnyTensor, rows: usize) -> Result<(), OpsError> {
        expect_f32(OP, "x", x)?;
        let shape = x.shape();
        let features = shape.last().copied().unwrap_or(0);
        expect_shape(OP, "x", shape, &[rows, features])
    }
}

/// How many rows come from each rank, and their experts; none after an error.
fn agreed(
    ranks: &Tp,
    numbers: Vec<u64>,
    send: &[usize],
    each: usize,
    what: &str,
) -> Option<(Vec<usize>, Vec<u64>)> {
    ranks.check().ok()?;
    let counts = send.iter().map(|&count| count as u64).collect();
    let all = ranks.size();
    let counts =
        ranks.group().all_gather_v(Bucket::new(counts), &vec![all; all], &format!("{what}: rows")).wait();
    let counts = ranks.kept(counts).ok()?;
    let receive: Vec<usize> = counts.iter().map(|of| of[ranks.rank()] as usize).collect();
    let scaled = |counts: &[usize]| counts.iter().map(|count| count.saturating_mul(each)).collect::<Vec<_>>();
    let numbers = Bucket::new(numbers);
    let came =
        ranks.group().all_to_all_v(numbers, &scaled(send), &scaled(&receive), &format!("{what}: of rows"));
    let came = ranks.kept(came.wait()).ok()?;
    Some((receive, came.concat().into_vec()))
}

impl Route {
    /// Zeros for as many tokens as came.
    fn none(&self, like: &AnyTensor) -> AnyTensor {
        zeros(&[self.receive.iter().sum(), like.shape()[1]], &like.device())
    }

    /// Rows of this rank's tokens to the ranks with their experts.
    fn sent(&self, x: &AnyTensor, of: &str) -> Result<AnyTensor, OpsError> {
        let features = x.shape()[1];
        let rows = match self.rows.is_empty() {
            true => zeros(&[0, features], &x.device()),
            false => select_rows(x, &self.rows)?,
        };
        Ok(self.exchanged(&rows, &self.send, &self.receive, of))
    }

    /// Rows of the tokens that came, back to where those are, and added.
    fn returned(&self, y: &AnyTensor, of: &str) -> AnyTensor {
        let back = self.exchanged(y, &self.receive, &self.send, of);
        if back.is_on_host() || self.rows.is_empty() {
            return self.added(&back);
        }
        self.added_by_number(&back)
    }

    /// The rows of what was sent, added where they are of one token.
    fn added(&self, back: &AnyTensor) -> AnyTensor {
        let features = back.shape()[1];
        let mut sums = vec![0.0_f32; self.tokens * features];
        let values: Elements<f32> = back.elements().expect("invariant: what is exchanged is f32");
        for (&token, row) in self.rows.iter().zip(values.chunks_exact(features.max(1))) {
            let to = &mut sums[token * features..(token + 1) * features];
            to.iter_mut().zip(row).for_each(|(to, x)| *to += x);
        }
        AnyTensor::from_elements(sums, &[self.tokens, features], &back.device())
    }

    /// [`Self::added`] where they lie on a device.
    fn added_by_number(&self, back: &AnyTensor) -> AnyTensor {
        let features = back.shape()[1];
        let mut first = 0;
        let mut sum = None;
        for &count in self.send.iter().filter(|&&count| count > 0) {
            // Of each rank's rows a token has one at most.
            let own = first..first + count;
            first += count;
            let taken = lines(self.tokens, own.map(|at| (self.rows[at], at)));
            let part = select(vec![matrix(back, features)], 0, &taken);
            sum = Some(match sum {
                None => part,
                Some(sum) => sum + part,
            });
        }
        let none = || zeros(&[self.tokens, features], &back.device());
        sum.map_or_else(none, |sum| shaped(sum, &[self.tokens, features]))
    }

    /// `send[r]` rows for rank r, from it `receive[r]`; zeros after an error.
    fn exchanged(&self, rows: &AnyTensor, send: &[usize], receive: &[usize], of: &str) -> AnyTensor {
        let features = rows.shape()[1];
        let shape = [receive.iter().sum(), features];
        let scaled =
            |counts: &[usize]| counts.iter().map(|count| count.saturating_mul(features)).collect::<Vec<_>>();
        let device = rows.device();
        if self.ranks.check().is_err() {
            return zeros(&shape, &device);
        }
        let Some(bucket) = bucket::<f32>(rows) else { return zeros(&shape, &device) };
        let what = format!("{}: {of}", self.what);
        let came = self.ranks.group().all_to_all_v(bucket, &scaled(send), &scaled(receive), &what).wait();
        match self.ranks.kept(came) {
            Ok(parts) => all_joined(tensors(&parts, &device), &shape),
            Err(_) => zeros(&shape, &device),
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    /// What a device adds by numbers is what the host adds row by row.
    #[test]
    fn rows_by_number_are_rows_one_by_one() {
        let route = Route {
            ranks: Tp::alone(),
            what: String::new(),
            tokens: 4,
            rows: Arc::new(vec![0, 2, 3, 2, 0, 2]),
            send: vec![3, 0, 2, 1],
            receive: vec![0; 4],
            experts: Arc::default(),
        };
        let values = (0..12).map(|i| (i as f32 * 0.7).sin()).collect();
        let back = AnyTensor::from_elements(values, &[6, 2], &Device::flex());
        let sums = route.added(&back).to_f32();
        assert_eq!(route.added_by_number(&back).to_f32(), sums);
        assert_eq!(sums[2..4], [0.0, 0.0]);
    }
}
