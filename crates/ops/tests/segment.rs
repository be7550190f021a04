//! Segments: what is recomputed is what would have been kept.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use burn::tensor::Tensor;
use burnish_ops::{AnyTensor, NoWeights, OpsError, Run, Weights, runs_again, segment};

use crate::case::{assert_close, tensor, to_f64};

/// The same operations in the same order: rounding aside where gradients add up in another order.
const SAME: f64 = 1e-6;
/// A deadlock is no answer within this.
const PATIENCE: Duration = Duration::from_secs(30);

/// Weights in memory that count how often they are asked for and keep what they are given.
#[derive(Default)]
struct Source {
    weights: Vec<AnyTensor>,
    trainable: Vec<bool>,
    gathered: AtomicUsize,
    sunk: Mutex<BTreeMap<usize, Vec<f64>>>,
}

impl Source {
    fn new(weights: &[AnyTensor], trainable: &[bool]) -> Arc<Self> {
        Arc::new(Self { weights: weights.to_vec(), trainable: trainable.to_vec(), ..Self::default() })
    }

    fn gathered(&self) -> usize {
        self.gathered.load(Ordering::Relaxed)
    }

    fn sunk(&self) -> BTreeMap<usize, Vec<f64>> {
        self.sunk.lock().unwrap().clone()
    }
}

impl Weights for Source {
    fn gather(&self) -> Vec<AnyTensor> {
        self.gathered.fetch_add(1, Ordering::Relaxed);
        self.weights.clone()
    }

    fn trainable(&self) -> Vec<bool> {
        self.trainable.clone()
    }

    fn sink(&self, index: usize, gradient: AnyTensor) {
        assert!(!gradient.is_tracked());
        let before = self.sunk.lock().unwrap().insert(index, to_f64(&gradient));
        assert!(before.is_none(), "one gradient per weight and backward");
    }
}

fn matrix(t: &AnyTensor) -> Tensor<2> {
    t.rank::<2>().unwrap()
}

fn sum(t: &AnyTensor) -> Tensor<1> {
    matrix(t).sum()
}

fn grad(t: &AnyTensor, gradients: &mut burn::tensor::Gradients) -> Vec<f64> {
    to_f64(&t.take_gradient(gradients).unwrap())
}

/// `tanh(x W^T) V^T * y`: two inputs, two weights.
fn body() -> Run {
    Arc::new(|inputs, weights| {
        let h = inputs[0].rank::<2>()?.matmul(weights[0].rank::<2>()?.transpose()).tanh();
        Ok(AnyTensor::new(h.matmul(weights[1].rank::<2>()?.transpose()) * inputs[1].rank::<2>()?))
    })
}

fn inputs() -> [AnyTensor; 2] {
    [tensor("x", &[5, 3]), tensor("y", &[5, 4])]
}

fn weights() -> [AnyTensor; 2] {
    [tensor("w", &[6, 3]), tensor("v", &[4, 6])]
}

#[test]
fn values_and_gradients_are_those_without_it() {
    for track in [[true, true], [true, false], [false, true]] {
        for trainable in [[true, true], [true, false], [false, true], [false, false]] {
            let name = format!("inputs {track:?}, weights {trainable:?}");
            let leaves = |all: [AnyTensor; 2], which: [bool; 2]| -> Vec<AnyTensor> {
                all.into_iter().zip(which).map(|(t, w)| if w { t.leaf() } else { t }).collect()
            };
            let (direct, direct_weights) = (leaves(inputs(), track), leaves(weights(), trainable));
            let want = body()(&direct, &direct_weights).unwrap();
            let mut want_gradients = (matrix(&want) * matrix(&want)).sum().backward();

            let source = Source::new(&weights(), &trainable);
            let through = leaves(inputs(), track);
            let got = segment("block", &through, source.clone(), true, body()).unwrap();
            assert_eq!(source.gathered(), 1, "{name}");
            assert!(got.is_tracked(), "{name}");
            assert_eq!(got.to_f32(), want.to_f32(), "{name}");
            let mut gradients = (matrix(&got) * matrix(&got)).sum().backward();
            assert_eq!(source.gathered(), 2, "{name}: once forward, once backward");

            for (i, tracked) in track.into_iter().enumerate() {
                if tracked {
                    let (got, want) =
                        (grad(&through[i], &mut gradients), grad(&direct[i], &mut want_gradients));
                    assert_close(&got, &want, SAME, &format!("{name}: input {i}"));
                }
            }
            let sunk = source.sunk();
            assert_eq!(sunk.len(), trainable.iter().filter(|&&t| t).count(), "{name}");
            for (i, gradient) in sunk {
                assert!(trainable[i], "{name}: weight {i}");
                assert_close(&gradient, &grad(&direct_weights[i], &mut want_gradients), SAME, &name);
            }
        }
    }
}

/// A segment knows whether it runs again, and one in it that runs forward for the first one's sake is read.
#[test]
fn what_runs_again_is_known() {
    let seen: Arc<Mutex<Vec<(&str, bool)>>> = Arc::default();
    let note = |name: &'static str| {
        let seen = seen.clone();
        move || seen.lock().unwrap().push((name, runs_again()))
    };
    let (outer, inner, after) = (note("outer"), note("inner"), note("after"));
    let run: Run = Arc::new(move |inputs, _| {
        outer();
        let inner = inner.clone();
        let run: Run = Arc::new(move |inputs, _| {
            inner();
            Ok(AnyTensor::new(inputs[0].rank::<2>()?.tanh()))
        });
        let y = segment("inner", inputs, Arc::new(NoWeights), true, run)?;
        after();
        Ok(AnyTensor::new(y.rank::<2>()? * 2.0))
    });
    let x = tensor("x", &[5, 3]).leaf();
    let y = segment("outer", std::slice::from_ref(&x), Arc::new(NoWeights), true, run).unwrap();
    drop(sum(&y).backward());
    let forward = [("outer", false), ("inner", false), ("after", false)];
    // The inner one runs forward in the outer one's second run, and again in that one's backward.
    let again = [("outer", true), ("inner", false), ("after", true), ("inner", true)];
    assert_eq!(*seen.lock().unwrap(), [&forward[..], &again].concat());
    assert!(!runs_again());
}

#[test]
fn within_an_expression() {
    let run = |through: bool| {
        let (x, w) = (tensor("x", &[5, 3]).leaf(), tensor("w", &[6, 3]));
        let before = [
            AnyTensor::new((matrix(&x) * 0.5).exp()),
            AnyTensor::new(matrix(&x).narrow(1, 0, 1).repeat_dim(1, 4)),
        ];
        let v = tensor("v", &[4, 6]);
        let (out, w_leaf, source) = if through {
            let source = Source::new(&[w, v], &[true, false]);
            (segment("middle", &before, source.clone(), true, body()).unwrap(), None, Some(source))
        } else {
            let w = w.leaf();
            (body()(&before, &[w.clone(), v]).unwrap(), Some(w), None)
        };
        // The input is used again beside the segment.
        let loss = (matrix(&out).sin() * 3.0).sum() + matrix(&x).powi_scalar(3).sum();
        let mut gradients = loss.backward();
        let dw = match (w_leaf, source) {
            (Some(w), _) => grad(&w, &mut gradients),
            (_, Some(source)) => source.sunk()[&0].clone(),
            _ => unreachable!("one of the two"),
        };
        (to_f64(&AnyTensor::new(loss)), grad(&x, &mut gradients), dw)
    };
    let ((loss, dx, dw), (want_loss, want_dx, want_dw)) = (run(true), run(false));
    assert_eq!(loss, want_loss);
    assert_close(&dx, &want_dx, SAME, "input");
    assert_close(&dw, &want_dw, SAME, "weight");
}

/// One segment's output is the next one's input, as the blocks of a model.
#[test]
fn chains() {
    let block: Run = Arc::new(|inputs, weights| {
        let x = inputs[0].rank::<2>()?;
        Ok(AnyTensor::new(x.clone() + x.matmul(weights[0].rank::<2>()?).tanh()))
    });
    let names = ["w0", "w1", "w2", "w3"];
    let x = tensor("x", &[7, 4]).leaf();
    let mut sources = Vec::new();
    let mut h = x.clone();
    for name in names {
        let source = Source::new(&[tensor(name, &[4, 4])], &[true]);
        h = segment(name, &[h], source.clone(), true, block.clone()).unwrap();
        sources.push(source);
    }
    let mut gradients = sum(&h).backward();

    let direct = tensor("x", &[7, 4]).leaf();
    let leaves = names.map(|name| tensor(name, &[4, 4]).leaf());
    let mut h = direct.clone();
    for w in &leaves {
        h = block(&[h], std::slice::from_ref(w)).unwrap();
    }
    let mut want = sum(&h).backward();
    assert_close(&grad(&x, &mut gradients), &grad(&direct, &mut want), SAME, "input");
    for ((source, leaf), name) in sources.iter().zip(&leaves).zip(names) {
        assert_eq!(source.gathered(), 2, "{name}");
        assert_close(&source.sunk()[&0], &grad(leaf, &mut want), SAME, name);
    }
}

/// A segment in a segment: the inner one is recorded when the outer one runs again.
#[test]
fn nested() {
    let inner_source = Source::new(&weights()[1..], &[true]);
    let outer_source = Source::new(&weights()[..1], &[true]);
    let source = inner_source.clone();
    let outer: Run = Arc::new(move |inputs, weights| {
        let h = AnyTensor::new(inputs[0].rank::<2>()?.matmul(weights[0].rank::<2>()?.transpose()).tanh());
        let inner: Run = Arc::new(|inputs, weights| {
            Ok(AnyTensor::new(inputs[0].rank::<2>()?.matmul(weights[0].rank::<2>()?.transpose())))
        });
        let y = segment("inner", &[h], source.clone(), true, inner)?;
        Ok(AnyTensor::new(y.rank::<2>()? * inputs[1].rank::<2>()?))
    });
    let through = inputs().map(|t| t.leaf());
    let out = segment("outer", &through, outer_source.clone(), true, outer).unwrap();
    let mut gradients = sum(&out).backward();
    assert_eq!((outer_source.gathered(), inner_source.gathered()), (2, 3));

    let (direct, leaves) = (inputs().map(|t| t.leaf()), weights().map(|t| t.leaf()));
    let want = body()(&direct, &leaves).unwrap();
    assert_eq!(out.to_f32(), want.to_f32());
    let mut want = sum(&want).backward();
    for i in 0..2 {
        assert_close(&grad(&through[i], &mut gradients), &grad(&direct[i], &mut want), SAME, "input");
    }
    assert_close(&outer_source.sunk()[&0], &grad(&leaves[0], &mut want), SAME, "outer weight");
    assert_close(&inner_source.sunk()[&0], &grad(&leaves[1], &mut want), SAME, "inner weight");

    // The leniency ends with the segment that ran.
    let error =
        segment("after", &inputs(), Source::new(&weights(), &[true, true]), true, body()).unwrap_err();
    assert!(matches!(error, OpsError::UntrackedInput { .. }));
}

#[test]
fn an_input_that_does_not_reach_the_output_gets_zeros() {
    let [x, y] = inputs().map(|t| t.leaf());
    let only_second: Run = Arc::new(|inputs, weights| {
        Ok(AnyTensor::new(inputs[1].rank::<2>()?.matmul(weights[1].rank::<2>()?)))
    });
    let source = Source::new(&weights(), &[true, true]);
    let out = segment("second", &[x.clone(), y.clone()], source.clone(), true, only_second.clone()).unwrap();
    let mut gradients = sum(&out).backward();
    assert_eq!(grad(&x, &mut gradients), [0.0; 15]);
    assert!(grad(&y, &mut gradients).iter().all(|&g| g != 0.0));
    assert_eq!(source.sunk().keys().collect::<Vec<_>>(), [&1], "a weight that is not used gets nothing");

    // Nothing wanted reaches it at all.
    let [x, _] = inputs().map(|t| t.leaf());
    let [_, y] = inputs();
    let source = Source::new(&weights(), &[false, false]);
    let out = segment("none", &[x.clone(), y], source, true, only_second).unwrap();
    let mut gradients = sum(&out).backward();
    assert_eq!(grad(&x, &mut gradients), [0.0; 15]);
}

#[test]
fn without_tracked_inputs() {
    let error =
        segment("block.3", &inputs(), Source::new(&weights(), &[false, true]), true, body()).unwrap_err();
    assert!(matches!(&error, OpsError::UntrackedInput { name } if name == "block.3"));
    assert!(
        error.to_string().starts_with("segment `block.3`: it has trainable weights but none of its inputs")
    );
    assert!(error.to_string().contains("`AnyTensor::leaf`"), "{error}");

    // Not training, or nothing to train: the function and no more.
    for (trainable, training) in [([true, true], false), ([false, false], true)] {
        let source = Source::new(&weights(), &trainable);
        let out = segment("block", &inputs(), source.clone(), training, body()).unwrap();
        assert_eq!(out.to_f32(), body()(&inputs(), &weights()).unwrap().to_f32());
        assert_eq!((out.is_tracked(), source.gathered()), (false, 1));
    }

    // Not training with tracked inputs: gradients pass, weights get none.
    let through = inputs().map(|t| t.leaf());
    let source = Source::new(&weights(), &[true, true]);
    let out = segment("block", &through, source.clone(), false, body()).unwrap();
    let mut gradients = sum(&out).backward();
    assert!(grad(&through[0], &mut gradients).iter().all(|&g| g != 0.0));
    assert!(source.sunk().is_empty());
}

/// Runs on a thread that may hang.
fn in_time<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || send.send(run()));
    receive.recv_timeout(PATIENCE).expect("no answer in time: a deadlock, or the thread panicked")
}

#[test]
fn captured_tracked_tensors_are_refused() {
    let refuse = |weights: fn() -> Arc<Source>, use_captured: bool| {
        in_time(move || {
            let captured = tensor("captured", &[5, 4]).leaf();
            let run: Run = Arc::new(move |inputs, weights| {
                let out = body()(inputs, weights)?.rank::<2>()?;
                let captured = if use_captured { captured.clone() } else { captured.plain() };
                Ok(AnyTensor::new(out * captured.rank::<2>()?))
            });
            let through = inputs().map(|t| t.leaf());
            segment("greedy", &through, weights(), true, run).map(|out| sum(&out).backward()).map(drop)
        })
    };
    let plain = || Source::new(&weights(), &[true, true]);
    let tracked = || Source::new(&weights().map(|t| t.leaf()), &[true, true]);
    for error in [refuse(plain, true).unwrap_err(), refuse(tracked, false).unwrap_err()] {
        assert!(matches!(&error, OpsError::CapturedTracked { name } if name == "greedy"), "{error}");
        assert!(
            error.to_string().contains("captured a tracked tensor")
                && error.to_string().contains("AnyTensor::plain")
        );
    }
    // Captured outside autodiff, as the message says, it is a constant.
    refuse(plain, false).unwrap();
}

/// Ranks are threads: each runs its own segments, the weights of all meet nowhere.
#[test]
fn threads_do_not_disturb_each_other() {
    let run = || {
        let through = inputs().map(|t| t.leaf());
        let source = Source::new(&weights(), &[true, true]);
        let out = segment("block", &through, source.clone(), true, body()).unwrap();
        let mut gradients = sum(&out).backward();
        (grad(&through[0], &mut gradients), source.sunk())
    };
    let want = run();
    let found = in_time(move || {
        let threads: Vec<_> =
            (0..4).map(|_| thread::spawn(move || (0..20).map(|_| run()).collect::<Vec<_>>())).collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(found.len(), 80);
    assert!(found.iter().all(|f| *f == want));
}

#[test]
fn a_failing_function_is_an_error() {
    let run: Run = Arc::new(|inputs, _| {
        inputs[0].rank::<3>()?;
        unreachable!("a matrix")
    });
    let error = segment("block", &inputs().map(|t| t.leaf()), Source::new(&[], &[]), true, run).unwrap_err();
    assert!(matches!(error, OpsError::Rank { expected: 3, .. }));
}
