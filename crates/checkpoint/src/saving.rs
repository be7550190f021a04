//! A save in the background, so that the step does not wait for the disk.

use std::any::Any;
use std::thread::JoinHandle;

use crate::CheckpointError;

/// At most one save in the background of a rank: the first phase, the writing. `T` is what it leaves for the second, the
/// commit: a [`Written`](crate::Written), perhaps with more. `E` is the caller's error.
///
/// 1. [`start`](Self::start) with a closure that owns its [`CheckpointWriter`](crate::CheckpointWriter) and cheap
///    (copy-on-write) snapshots of what it saves.
/// 2. At each step [`poll`](Self::poll), or, with several ranks, exchange [`is_done`](Self::is_done) beside the step's
///    other scalars. When all ranks are done, [`join`](Self::join) on each and tell each other who failed: if none did,
///    the lead commits; else all drop what they have.
/// 3. Before the next save: `join`, which waits. Saves never pile up, and none is dropped silently.
///
/// Dropping it waits for the thread, so that no file is written after its owner is gone.
///
/// ```
/// use burnish_checkpoint::{CheckpointError, CheckpointWriter, Saving, TrainerState, Written, latest};
/// use burnish_weight_files::HostTensor;
/// # let dir = tempfile::tempdir().unwrap();
/// let mut saving: Saving<Written> = Saving::idle();
/// let snapshot = HostTensor::from_slice(&[1.0_f32], &[1]).unwrap();
/// let mut writer = CheckpointWriter::new(dir.path(), 7).unwrap();
/// saving.start(7, move || {
///     writer.tensor("w", "exp_avg", snapshot.view())?;
///     writer.trainer_state(&TrainerState { global_step: 7, ..Default::default() })?;
///     writer.finish()
/// })?;
/// // ... steps ...
/// let written = saving.join().expect("one was started")?;
/// assert!(latest(dir.path())?.checkpoint.is_none(), "nothing is visible before the commit");
/// written.commit()?;
/// assert_eq!(latest(dir.path())?.checkpoint.unwrap().step(), 7);
/// # Ok::<(), CheckpointError>(())
/// ```
#[derive(Debug)]
pub struct Saving<T, E = CheckpointError> {
    running: Option<(u64, JoinHandle<Result<T, E>>)>,
}

impl<T, E> Default for Saving<T, E> {
    fn default() -> Self {
        Self::idle()
    }
}

impl<T, E> Saving<T, E> {
    /// Nothing is being saved.
    #[must_use]
    pub fn idle() -> Self {
        Self { running: None }
    }

    /// The step that is being saved (or whose result waits to be taken).
    #[must_use]
    pub fn step(&self) -> Option<u64> {
        self.running.as_ref().map(|(step, _)| *step)
    }

    /// Whether nothing is being written: there is a result to take, or no save.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.running.as_ref().is_none_or(|(_, thread)| thread.is_finished())
    }
}

impl<T: Send + 'static, E: From<CheckpointError> + Send + 'static> Saving<T, E> {
    /// Begins to save in a thread of its own.
    ///
    /// A save before it must have been [joined](Self::join): its result would be lost. If it was not, this waits for it,
    /// and its failure is the error here; what it left uncommitted is given up.
    ///
    /// # Errors
    /// If there is no thread to be had, or the save before failed.
    pub fn start(
        &mut self,
        step: u64,
        write: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<(), E> {
        if let Some(before) = self.join() {
            drop(before?);
        }
        let thread = std::thread::Builder::new().name(format!("save-{step}")).spawn(write);
        let thread = thread.map_err(|source| CheckpointError::NoThread { step, source })?;
        self.running = Some((step, thread));
        Ok(())
    }

    /// The result of a save that is done; `None` while it writes, and when there is none. Each result is given once.
    pub fn poll(&mut self) -> Option<Result<T, E>> {
        if self.is_done() { self.join() } else { None }
    }

    /// Waits for the save to be done; `None` if there is none.
    pub fn join(&mut self) -> Option<Result<T, E>> {
        let (step, thread) = self.running.take()?;
        Some(thread.join().unwrap_or_else(|panic| {
            Err(CheckpointError::SavingPanicked { step, reason: words(&*panic) }.into())
        }))
    }
}

impl<T, E> Drop for Saving<T, E> {
    fn drop(&mut self) {
        if let Some((_, thread)) = self.running.take() {
            drop(thread.join());
        }
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
