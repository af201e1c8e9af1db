//! Batches prepared ahead of time, on a thread of their own, so that no training step waits for its input.
//! Knows nothing of what a batch is for.

use std::any::Any;
use std::io;
use std::sync::mpsc as sync_mpsc;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};

use pushpull_messages::input::{ColumnSpec, PREFETCH, PREFETCH_MAX};
use tokio::sync::mpsc;

use super::stages::Room;
use super::{Batch, InputError, Mapped, Sampler};

/// How many batches are kept ready where nobody says otherwise.
pub const READY_BATCHES: usize = PREFETCH as usize;

/// Most batches that are kept ready: more would hold memory and hide a slow input no better.
pub const READY_BATCHES_MAX: usize = PREFETCH_MAX as usize;

const _: () = assert!(1 <= READY_BATCHES && READY_BATCHES <= READY_BATCHES_MAX);

/// Most bytes of all batches that a worker holds at a time, ready or in use.
pub const READY_BYTES_MAX: u64 = 1 << 30;

/// Whether so many batches of so many examples may be held at a time.
///
/// # Errors
/// [`InputError::ReadyBytes`] where they would take more than [`READY_BYTES_MAX`].
pub fn check_ready_bytes(columns: &[ColumnSpec], examples: usize, batches: usize) -> Result<(), InputError> {
    let bytes_of = |column: &ColumnSpec| {
        let elements = column.example.shape.checked_elements().unwrap_or(usize::MAX);
        (elements as u64).saturating_mul(ELEMENT_BYTES)
    };
    let example = columns.iter().map(bytes_of).fold(0, u64::saturating_add);
    let bytes = example.saturating_mul(examples as u64).saturating_mul(batches as u64);
    match columns.iter().max_by_key(|column| bytes_of(column)) {
        Some(widest) if bytes > READY_BYTES_MAX => {
            let (max, column) = (READY_BYTES_MAX, widest.clone());
            Err(InputError::ReadyBytes { batches, examples, bytes, max, column })
        }
        _ => Ok(()),
    }
}

/// Of either type in a batch.
const ELEMENT_BYTES: u64 = 4;

/// Batches that a thread that keeps `ready` of them ready may hold, with the one in use.
const fn held(ready: usize) -> usize {
    ready + 2
}

/// A thread that keeps batches ready.
///
/// At most `ready` batches wait, and the thread holds one more. A batch that is given back with
/// [`recycle`](Self::recycle) is filled again, so that with the one in use `ready + 2` batches are all that is ever
/// allocated.
#[derive(Debug)]
pub struct Prefetch {
    ready: mpsc::Receiver<Batch>,
    spent: sync_mpsc::SyncSender<Batch>,
    thread: Option<JoinHandle<()>>,
    /// What the thread said when it panicked.
    panic: Option<String>,
    /// Why there is no more, where the input ends by itself.
    end: Arc<OnceLock<InputError>>,
}

impl Prefetch {
    /// Starts to prepare the batches that `sampler` chooses from `dataset`, `ready` of them ahead: at
    /// least 1 and at most [`READY_BATCHES_MAX`], whatever is asked for.
    ///
    /// # Errors
    /// [`InputError::ReadyBytes`] where the batches would take more than [`READY_BYTES_MAX`], before anything is
    /// allocated; [`InputError::Thread`] where the operating system gives no thread.
    ///
    /// # Panics
    /// Where the sampler's share is one of a larger set.
    pub fn start(dataset: Mapped, mut sampler: Sampler, ready: usize) -> Result<Self, InputError> {
        assert!(
            sampler.share().examples_of_all() as usize <= dataset.len(),
            "a sampler for another data set"
        );
        let ready = ready.clamp(1, READY_BATCHES_MAX);
        check_ready_bytes(dataset.columns(), sampler.batch(), held(ready))?;
        let mut picks = Vec::with_capacity(sampler.batch());
        let mut room = Room::default();
        Self::start_with(ready, move |batch| {
            sampler.next_into(&mut picks)?;
            batch.set(&dataset, &picks, Some(sampler.position()), &mut room);
            Ok(())
        })
    }

    /// Starts with anything that fills batches, up to its first error.
    fn start_with(
        ready: usize,
        fill: impl FnMut(&mut Batch) -> Result<(), InputError> + Send + 'static,
    ) -> Result<Self, InputError> {
        let ready = ready.clamp(1, READY_BATCHES_MAX);
        let (to_ready, from_ready) = mpsc::channel(ready);
        let (to_spent, from_spent) = sync_mpsc::sync_channel(held(ready));
        let end = Arc::new(OnceLock::new());
        let thread = thread::Builder::new()
            .name("prefetch".into())
            .spawn({
                let end = Arc::clone(&end);
                move || prepare(fill, &to_ready, &from_spent, &end)
            })
            .map_err(|source: io::Error| InputError::Thread { source })?;
        Ok(Self { ready: from_ready, spent: to_spent, thread: Some(thread), panic: None, end })
    }

    /// The next batch; waits without blocking the task's thread. May be cancelled: no batch is then lost.
    ///
    /// # Errors
    /// [`InputError::Ended`] where the input has an end and has reached it, [`InputError::Panicked`] where the thread
    /// is no more, now and on every later call.
    pub async fn next(&mut self) -> Result<Batch, InputError> {
        match self.ready.recv().await {
            Some(batch) => Ok(batch),
            None => Err(self.ended()),
        }
    }

    /// The next batch; blocks the thread. For use outside of asynchronous code.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    ///
    /// # Panics
    /// When called from asynchronous code.
    pub fn next_blocking(&mut self) -> Result<Batch, InputError> {
        match self.ready.blocking_recv() {
            Some(batch) => Ok(batch),
            None => Err(self.ended()),
        }
    }

    /// How many batches are ready, of so many that may be.
    pub fn ready(&self) -> [usize; 2] {
        [self.ready.len(), self.ready.max_capacity()]
    }

    /// Gives a batch back, so that its memory is used for a later one. Never blocks.
    pub fn recycle(&self, batch: Batch) {
        // A full channel (batches that came from elsewhere) or a thread that is no more: the memory is freed instead.
        let _ = self.spent.try_send(batch);
    }

    /// Why no batch comes any more. The thread drops its end of the channel when it ends, so joining does not wait.
    fn ended(&mut self) -> InputError {
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
            self.panic = Some(message_of(panic.as_ref()));
        }
        if let Some(InputError::Ended { epochs, examples, batch }) = self.end.get() {
            return InputError::Ended { epochs: *epochs, examples: *examples, batch: *batch };
        }
        let message = self.panic.clone().expect("the thread ends by itself only in a panic");
        InputError::Panicked { message }
    }
}

/// Stops the thread, and waits for the batch that it is filling.
impl Drop for Prefetch {
    fn drop(&mut self) {
        self.ready.close();
        if let Some(thread) = self.thread.take() {
            // A panic that nobody asked about any more has already been printed.
            let _ = thread.join();
        }
    }
}

/// The thread: fills batches until nobody wants them.
fn prepare(
    mut fill: impl FnMut(&mut Batch) -> Result<(), InputError>,
    ready: &mpsc::Sender<Batch>,
    spent: &sync_mpsc::Receiver<Batch>,
    end: &OnceLock<InputError>,
) {
    while !ready.is_closed() {
        let mut batch = spent.try_recv().unwrap_or_default();
        if let Err(error) = fill(&mut batch) {
            let _ = end.set(error);
            return;
        }
        if ready.blocking_send(batch).is_err() {
            return;
        }
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text =
        panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    // An error is one line, whatever was said.
    text.unwrap_or("it did not say why").lines().collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests;
