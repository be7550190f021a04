//! A model divided over tensor-parallel ranks: what each rank has, and the whole of it.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burnish_comm::local;
use burnish_core::{Dtype, Registry};
use burnish_models::{
    Decoding, DropoutStep, Exporter, LocalParams, Mode, Model, ModelError, ModelFolder, ModelPlan, Parallel,
    QkClip, RowFactors, RowSource, Tokens, Tuning, to_device, to_host,
};
use burnish_ops::{AnyTensor, Parameters};
use burnish_tp::{PartialGrad, Tp};
use burnish_weight_files::{Attempt, FolderWriter, HostTensor, Placement, Share};
use tempfile::TempDir;

use crate::dora::backward;
use crate::recordings::device;

/// One rank's part.
pub(crate) struct Part {
    pub(crate) tp: Tp,
    /// Of global shapes.
    pub(crate) registry: Registry,
    pub(crate) model: Model,
    resident: Arc<LocalParams>,
    parallel: Arc<Parallel>,
    exporter: Exporter,
    /// What clipping would scale.
    pub(crate) clip: Result<QkClip, ModelError>,
}

/// What every rank makes of its part.
#[track_caller]
pub(crate) fn on_ranks<T: Send>(
    ranks: usize,
    folder: &ModelFolder,
    tuning: &Tuning<'_>,
    run: impl Fn(Part) -> T + Sync,
) -> Vec<T> {
    let results = local::run(ranks, |world| {
        let tp = Tp::new(&world.group());
        let planned = ModelPlan::new(folder, tuning, Dtype::F32, 3).unwrap().over(&tp).unwrap();
        planned.make_initial().unwrap();
        let (registry, parallel) = (planned.registry().clone(), planned.parallel().unwrap().clone());
        let (exporter, clip) = (planned.exporter(), planned.qk_clip());
        let (model, resident) = planned.resident(&device()).unwrap();
        run(Part { tp, registry, model, resident, parallel, exporter, clip })
    });
    results.into_iter().map(Result::unwrap).collect()
}

/// A batch's loss, the norm of its gradient, and the whole gradients by name.
pub(crate) struct Found {
    pub(crate) loss: f32,
    pub(crate) norm: f64,
    pub(crate) gradients: Vec<(String, Vec<f32>)>,
}

impl Part {
    /// Runs micro-batches, sums addends once, and leaves what each gradient is.
    pub(crate) fn found(
        &self,
        micro_batches: &[&[Vec<u32>]],
        denominator: f32,
        dropout: Option<DropoutStep>,
    ) -> Found {
        let (loss, own) = self.gradients(micro_batches, denominator, dropout);
        let squares: f64 = own.iter().map(|a| a.squares(self.tp.rank())).sum();
        let norm = self.tp.sum_f64(&[squares], "norm").unwrap()[0].sqrt();
        let gradients = own
            .iter()
            .map(|a| (a.name.to_owned(), self.whole(self.registry.index_of(a.name).unwrap(), &a.gradient)))
            .collect();
        Found { loss, norm, gradients }
    }

    fn gradients(
        &self,
        micro_batches: &[&[Vec<u32>]],
        denominator: f32,
        dropout: Option<DropoutStep>,
    ) -> (f32, Vec<PartialGrad<'_>>) {
        let (mut loss, mut from) = (0.0, 0);
        for sequences in micro_batches {
            let mode = Mode::Train { recompute: false, dropout };
            loss += backward(&self.model.decoder, sequences, denominator, from, mode);
            from += sequences.len() as u64;
        }
        let mut own: Vec<PartialGrad<'_>> = Vec::new();
        for (index, p) in
            self.registry.iter().enumerate().filter(|(_, p)| p.trainable && p.alias_of.is_none())
        {
            let placement = self.parallel.tp_layout(index);
            let shape = placement.layout().local_shape(self.tp.rank());
            // A rank may have no part in one (the bias of a row-parallel layer).
            let zeros = || AnyTensor::from_elements(vec![0.0_f32; shape.iter().product()], &shape, &device());
            let gradient = self.resident.take_gradient(index).unwrap_or_else(zeros);
            own.push(PartialGrad { name: &p.name, layout: placement, rows: 0..shape[0], gradient });
        }
        self.tp.sum_partial(&mut own).unwrap();
        self.tp.check().unwrap();
        (loss, own)
    }

    /// One step of stochastic gradient descent; the loss before it.
    pub(crate) fn step(&self, sequences: &[Vec<u32>], denominator: f32, rate: f32) -> f32 {
        let (loss, own) = self.gradients(&[sequences], denominator, None);
        for PartialGrad { name, gradient, .. } in own {
            let index = self.registry.index_of(name).unwrap();
            let value = self.resident.take(index);
            let moved: Vec<f32> =
                value.to_f32().iter().zip(gradient.to_f32()).map(|(w, g)| w - rate * g).collect();
            self.resident.write(index, AnyTensor::from_elements(moved, &value.shape(), &device()));
        }
        loss
    }

    /// All of a parameter, of whose elements each rank has some. Replicated ones must have the same bits everywhere.
    fn whole(&self, index: usize, own: &AnyTensor) -> Vec<f32> {
        let placement = self.parallel.tp_layout(index);
        let counts: Vec<usize> =
            (0..self.tp.size()).map(|r| placement.layout().local_shape(r).iter().product()).collect();
        let name = &self.registry.at(index).name;
        let parts = self.tp.all_gather(own.to_f32(), &counts, name).unwrap();
        let parts: Vec<&[f32]> = parts.iter().collect();
        if placement.layout().dim().is_none() {
            let bits = |x: &[f32]| x.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert!(parts.iter().all(|p| bits(p) == bits(parts[0])), "{name}: ranks differ");
        }
        placement.layout().unshard(&parts)
    }

    /// The whole value of each trained parameter.
    pub(crate) fn trained(&self) -> Vec<(String, Vec<f32>)> {
        let of = |(i, p): (usize, &burnish_core::Parameter)| {
            (p.name.clone(), self.whole(i, &self.resident.read(i)))
        };
        self.registry.iter().enumerate().filter(|(_, p)| p.trainable).map(of).collect()
    }

    /// Adds a function of each element's place in the whole to the trained values.
    pub(crate) fn perturb(&self, by: impl Fn(usize) -> f32) {
        for (index, p) in self.registry.iter().enumerate().filter(|(_, p)| p.trainable) {
            let placement = self.parallel.tp_layout(index);
            let whole: Vec<f32> = (0..p.elements()).map(&by).collect();
            let noise = placement.layout().shard(&whole, self.tp.rank());
            let value = self.resident.take(index);
            let moved: Vec<f32> = value.to_f32().iter().zip(noise).map(|(w, n)| w + n).collect();
            let tensor = HostTensor::from_f32(&moved, &value.shape(), p.precision.store).unwrap();
            self.resident.write(index, to_device(tensor, &device()));
        }
    }

    /// The largest attention logit of each head of the whole model over micro-batches.
    pub(crate) fn peaks(&self, micro_batches: &[&[Vec<u32>]], recompute: bool) -> Vec<f32> {
        let peaks = self.model.decoder.logit_peaks();
        for sequences in micro_batches {
            let tokens = Tokens::from_sequences(sequences);
            let mode = Mode::Train { recompute, dropout: None };
            let pass = self.model.decoder.pass(mode).with_logit_peaks(peaks.clone());
            let hidden = self.model.decoder.hidden(&tokens, &pass).unwrap().rank::<2>().unwrap();
            pass.backward(&AnyTensor::new(hidden.sum())).unwrap();
        }
        self.tp.check().unwrap();
        let own = peaks.take();
        let all = self.tp.all_gather(own, &vec![peaks.len(); self.tp.size()], "peaks").unwrap();
        let larger = |a: Vec<f32>, b: &[f32]| a.iter().zip(b).map(|(a, b)| a.max(*b)).collect();
        all.iter().fold(vec![f32::NEG_INFINITY; peaks.len()], larger)
    }

    /// Multiplies the rows of a parameter.
    pub(crate) fn scale(&self, rows: &RowFactors) {
        let value = self.resident.take(rows.index);
        let whole = 0..rows.factors.len();
        self.resident.write(rows.index, rows.scaled(&value, whole).unwrap());
    }

    /// This rank's elements of a vector with one element per row of a parameter.
    pub(crate) fn own_rows(&self, index: usize, whole: &[f32]) -> Vec<f32> {
        let placement = self.parallel.tp_layout(index);
        match placement.layout().split() {
            Some((0, split)) => {
                split.pieces(self.tp.rank()).iter().flat_map(|rows| whole[rows.clone()].to_vec()).collect()
            }
            _ => whole.to_vec(),
        }
    }

    /// The logits of the token after each prefix of a row.
    pub(crate) fn logits(&self, row: &[u32]) -> Vec<f32> {
        let prefixes: Vec<&[u32]> = (1..=row.len()).map(|n| &row[..n]).collect();
        Decoding::new(&self.model.decoder, prefixes.len()).logits(&prefixes).unwrap()
    }

    /// This rank's rows of each parameter that goes into files.
    fn written(&self) -> Written {
        let row = |(index, p): (usize, &burnish_core::Parameter)| {
            let exported = p.alias_of.is_none() && (!self.exporter.is_adapter() || p.trainable);
            if exported { self.rows(index, self.resident.read(index)) } else { Vec::new() }
        };
        Written(self.registry.iter().enumerate().map(row).collect())
    }

    fn rows(&self, index: usize, value: AnyTensor) -> Vec<(Range<usize>, HostTensor)> {
        let placement = self.parallel.tp_layout(index);
        let (rank, rows) = (self.tp.rank(), 0..value.shape()[0]);
        if let Some((1.., split)) = placement.layout().split() {
            let name = &self.registry.at(index).name;
            let (rows, value) = self.tp.columns_to_rows(&value, rows, split, name).unwrap();
            return vec![(rows, to_host(&value))];
        }
        let row: usize = value.shape().iter().skip(1).product();
        let piece = |(own, whole): (Range<usize>, Range<usize>)| {
            let mut shape = value.shape();
            shape[0] = own.len();
            (whole, to_host(&value.piece(own.start * row..own.end * row, &shape)))
        };
        placement.layout().saved_rows(rank, &rows).into_iter().map(piece).collect()
    }
}

/// What a rank writes, by parameter.
struct Written(Vec<Vec<(Range<usize>, HostTensor)>>);

impl RowSource for Written {
    fn rows(&self, index: usize) -> Vec<Range<usize>> {
        self.0[index].iter().map(|(rows, _)| rows.clone()).collect()
    }

    fn read(&self, index: usize) -> Result<HostTensor, ModelError> {
        let mut all = self.0[index].iter();
        let mut whole = all.next().unwrap().1.clone();
        for (_, piece) in all {
            whole.shape[0] += piece.shape[0];
            whole.bytes.extend_from_slice(&piece.bytes);
        }
        Ok(whole)
    }
}

/// The folder that ranks write together, after `change`: an adapter where there is one, else the model.
#[track_caller]
pub(crate) fn written(
    ranks: usize,
    folder: &ModelFolder,
    tuning: &Tuning<'_>,
    max_shard_size: u64,
    change: impl Fn(&Part) + Sync,
) -> (TempDir, PathBuf) {
    let guard = tempfile::tempdir().unwrap();
    let path = guard.path().join("out");
    let attempt = Attempt::fresh();
    let mut finished = on_ranks(ranks, folder, tuning, |part| {
        change(&part);
        let share = Share { attempt, rank: part.tp.rank(), ranks };
        let open =
            || FolderWriter::shared(&path, Placement::New, share).unwrap().max_shard_size(max_shard_size);
        // The first one makes the folder.
        let early = (share.rank == 0).then(open);
        part.tp.group().barrier("files").unwrap();
        let mut writer = early.unwrap_or_else(open);
        let source = part.written();
        if part.exporter.is_adapter() {
            part.exporter.adapter(&mut writer, &source).unwrap();
        } else {
            part.exporter.full(folder, &mut writer, part.exporter.trained_dtype(), &source).unwrap();
        }
        writer.finish().unwrap()
    });
    finished.remove(0).commit().unwrap();
    (guard, path)
}

/// Every file of a folder with its bytes.
pub(crate) fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<(String, Vec<u8>)> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap())
        .map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap()))
        .collect();
    all.sort();
    all
}

/// The greatest of the values.
pub(crate) fn greatest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |m, x| m.max(x.abs()))
}
