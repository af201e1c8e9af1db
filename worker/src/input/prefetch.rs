//! Batches prepared ahead of time, on a thread of their own, so that no training step waits for its input.
//! Knows nothing of what a batch is for.

use std::any::Any;
use std::io;
use std::sync::Arc;
use std::sync::mpsc as sync_mpsc;
use std::thread::{self, JoinHandle};

use tokio::sync::mpsc;

use super::{Batch, Dataset, InputError, Sampler};

/// How many batches are kept ready where nobody says otherwise.
pub const READY_BATCHES: usize = 2;

/// Most batches that are kept ready: more would hold memory and hide a slow input no better.
pub const READY_BATCHES_MAX: usize = 64;

const _: () = assert!(1 <= READY_BATCHES && READY_BATCHES <= READY_BATCHES_MAX);

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
}

impl Prefetch {
    /// Starts to prepare the batches that `sampler` chooses from `dataset`, `ready` of them ahead: at
    /// least 1 and at most [`READY_BATCHES_MAX`], whatever is asked for.
    ///
    /// # Errors
    /// [`InputError::Thread`] where the operating system gives no thread.
    ///
    /// # Panics
    /// Where the sampler's share is one of a larger set.
    pub fn start(dataset: Arc<Dataset>, mut sampler: Sampler, ready: usize) -> Result<Self, InputError> {
        assert!(
            sampler.share().examples_of_all() as usize <= dataset.len(),
            "a sampler for another data set"
        );
        let mut examples = Vec::with_capacity(sampler.batch());
        Self::start_with(ready, move |batch| {
            sampler.next_into(&mut examples);
            batch.set(&dataset, &examples, Some(sampler.position()));
        })
    }

    /// Starts with anything that fills batches.
    fn start_with(ready: usize, fill: impl FnMut(&mut Batch) + Send + 'static) -> Result<Self, InputError> {
        let ready = ready.clamp(1, READY_BATCHES_MAX);
        let (to_ready, from_ready) = mpsc::channel(ready);
        let (to_spent, from_spent) = sync_mpsc::sync_channel(ready + 2);
        let thread = thread::Builder::new()
            .name("prefetch".into())
            .spawn(move || prepare(fill, &to_ready, &from_spent))
            .map_err(|source: io::Error| InputError::Thread { source })?;
        Ok(Self { ready: from_ready, spent: to_spent, thread: Some(thread), panic: None })
    }

    /// The next batch; waits without blocking the task's thread. May be cancelled: no batch is then lost.
    ///
    /// # Errors
    /// [`InputError::Panicked`] where the thread is no more, now and on every later call.
    pub async fn next(&mut self) -> Result<Batch, InputError> {
        match self.ready.recv().await {
            Some(batch) => Ok(batch),
            None => Err(self.panicked()),
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
            None => Err(self.panicked()),
        }
    }

    /// Gives a batch back, so that its memory is used for a later one. Never blocks.
    pub fn recycle(&self, batch: Batch) {
        // A full channel (batches that came from elsewhere) or a thread that is no more: the memory is freed instead.
        let _ = self.spent.try_send(batch);
    }

    /// Why no batch comes any more. The thread drops its end of the channel when it ends, so joining does not wait.
    fn panicked(&mut self) -> InputError {
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
            self.panic = Some(message_of(panic.as_ref()));
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
    mut fill: impl FnMut(&mut Batch),
    ready: &mpsc::Sender<Batch>,
    spent: &sync_mpsc::Receiver<Batch>,
) {
    while !ready.is_closed() {
        let mut batch = spent.try_recv().unwrap_or_default();
        fill(&mut batch);
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
