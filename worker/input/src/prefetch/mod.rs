//! Prepares batches ahead of time on a separate thread, so training steps do not wait for input. This module
//! must not depend on what a batch is used for.

use std::any::Any;
use std::fmt;
use std::sync::mpsc as sync_mpsc;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use pushpull_messages::input::{ColumnSpec, PREFETCH, PREFETCH_MAX};
use tokio::sync::mpsc;

use crate::threads;
use crate::{Batch, InputError, Pipeline};

/// The default number of batches that are kept ready.
pub const READY_BATCHES: usize = PREFETCH as usize;

/// The maximum number of batches that are kept ready. More batches would take memory without hiding a slow
/// input any better.
pub const READY_BATCHES_MAX: usize = PREFETCH_MAX as usize;

const _: () = assert!(1 <= READY_BATCHES && READY_BATCHES <= READY_BATCHES_MAX);

/// The maximum number of bytes of all batches that a worker holds at a time, ready or in use.
pub const READY_BYTES_MAX: u64 = 1 << 30;

/// Checks that `batches` batches of `examples` examples each may be held at a time.
///
/// # Errors
/// [`InputError::ReadyBytes`] if the batches would take more than [`READY_BYTES_MAX`].
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

/// The number of bytes of an element in a batch, for both element types, `f32` and `i32`.
const ELEMENT_BYTES: u64 = 4;

/// Returns the maximum number of batches that exist when `ready` batches are kept ready and `used` are in use
/// at a time: one more is being filled.
const fn held(ready: usize, used: usize) -> usize {
    ready.saturating_add(used).saturating_add(1)
}

/// A function that fills a batch.
type Fill = Box<dyn FnMut(&mut Batch) -> Result<(), InputError> + Send>;

/// The source of batches that are filled on the thread that asks for them.
struct OnDemand {
    fill: Fill,
    /// The batches that the caller has given back, whose memory is used for later batches.
    spent: sync_mpsc::Receiver<Batch>,
}

impl fmt::Debug for OnDemand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnDemand")
    }
}

/// A thread that keeps batches ready, and the receiver of these batches.
///
/// At most `ready` batches wait, and the thread holds one more. The thread prepares another one when a batch
/// is taken, or earlier if the caller [makes room](Self::make_room) while it waits for something else. The
/// memory of a batch that is given back with
/// [`recycle`](Self::recycle) is used for a later batch, so at most `ready + 1` batches are ever allocated
/// beside those in use.
#[derive(Debug)]
pub struct Prefetch {
    ready: mpsc::Receiver<Batch>,
    /// The next batch, which has made room for another one.
    next: Option<Batch>,
    /// Whether `next` may be used: it counts as one of the ready batches, and is not the only one.
    has_next: bool,
    spent: sync_mpsc::SyncSender<Batch>,
    thread: Option<JoinHandle<()>>,
    /// Fills the batches if there is no thread.
    on_demand: Option<OnDemand>,
    /// The message of the panic that ended the thread; `None` if the thread did not panic.
    panic: Option<String>,
    /// The error that ended the input.
    end: Arc<OnceLock<Arc<InputError>>>,
}

impl Prefetch {
    /// Starts a thread that prepares the batches of `pipeline`. It keeps `ready` batches ready, the
    /// last of them once the caller has [made room](Self::make_room). `ready` is clamped to the range from 1
    /// to [`READY_BATCHES_MAX`]. The caller uses `used` batches at a time.
    ///
    /// # Errors
    /// [`InputError::ReadyBytes`] if the batches would take more than [`READY_BYTES_MAX`] (this is
    /// checked before the allocation); [`InputError::Thread`] if the operating system cannot start a thread.
    pub fn start(mut pipeline: Pipeline, ready: usize, used: usize) -> Result<Self, InputError> {
        let ready = ready.clamp(1, READY_BATCHES_MAX);
        check_ready_bytes(pipeline.columns(), pipeline.batch(), held(ready, used))?;
        Self::start_with(ready, used, move |batch| pipeline.fill(batch))
    }

    /// Starts a thread that calls `fill` until `fill` returns an error or the receiver is closed.
    fn start_with(
        ready: usize,
        used: usize,
        fill: impl FnMut(&mut Batch) -> Result<(), InputError> + Send + 'static,
    ) -> Result<Self, InputError> {
        let ready = ready.clamp(1, READY_BATCHES_MAX);
        let has_next = ready > 1;
        let (to_ready, from_ready) = mpsc::channel(ready - usize::from(has_next));
        let (to_spent, from_spent) = sync_mpsc::sync_channel(held(ready, used));
        let end = Arc::new(OnceLock::new());
        let thread = threads::spawn("prefetch", {
            let end = Arc::clone(&end);
            move || prepare(fill, &to_ready, &from_spent, &end)
        });
        let thread = thread.map_err(|source| InputError::Thread { source })?;
        Ok(Self {
            ready: from_ready,
            next: None,
            has_next,
            spent: to_spent,
            thread: Some(thread),
            on_demand: None,
            panic: None,
            end,
        })
    }

    /// Creates a source without a thread of its own: each batch of `pipeline` is prepared when it is asked
    /// for, on the thread that asks. The caller uses `used` batches at a time.
    ///
    /// # Errors
    /// [`InputError::ReadyBytes`] if these and another batch would take more than [`READY_BYTES_MAX`].
    pub fn on_demand(mut pipeline: Pipeline, used: usize) -> Result<Self, InputError> {
        check_ready_bytes(pipeline.columns(), pipeline.batch(), held(0, used))?;
        let (_, ready) = mpsc::channel(1);
        let (spent, from_spent) = sync_mpsc::sync_channel(held(0, used));
        let fill = Box::new(move |batch: &mut Batch| pipeline.fill(batch));
        let on_demand = Some(OnDemand { fill, spent: from_spent });
        let end = Arc::default();
        Ok(Self { ready, next: None, has_next: false, spent, thread: None, on_demand, panic: None, end })
    }

    /// Waits for the next batch without blocking the thread. If the call is cancelled, no batch is lost.
    ///
    /// # Errors
    /// [`InputError::Ended`] if the input has ended; [`InputError::Failed`] if the data could not be read;
    /// [`InputError::Panicked`] if the thread that prepares batches has panicked. Every later call returns
    /// the same error.
    pub async fn next(&mut self) -> Result<Batch, InputError> {
        if let Some(OnDemand { fill, spent }) = &mut self.on_demand {
            let mut batch = spent.try_recv().unwrap_or_default();
            match fill(&mut batch) {
                Ok(()) => return Ok(batch),
                Err(error) => drop(self.end.set(Arc::new(error))),
            }
            self.on_demand = None;
        }
        if let Some(batch) = self.try_next() {
            return Ok(batch);
        }
        match self.ready.recv().await {
            Some(batch) => Ok(batch),
            None => Err(self.ended()),
        }
    }

    /// Returns the next batch if it is ready now. A source without a thread has none ready.
    pub fn try_next(&mut self) -> Option<Batch> {
        self.next.take().or_else(|| self.ready.try_recv().ok())
    }

    /// Lets the thread prepare another batch now, and not when the next one is taken. A caller that waits for
    /// something else does not need the processor.
    pub fn make_room(&mut self) {
        if self.has_next && self.next.is_none() {
            self.next = self.ready.try_recv().ok();
        }
    }

    /// Waits for the next batch and blocks the calling thread. Use it outside of asynchronous code only.
    ///
    /// # Errors
    /// The same as those of [`next`](Self::next).
    ///
    /// # Panics
    /// If called from asynchronous code, or if this object was created by [`on_demand`](Self::on_demand).
    pub fn next_blocking(&mut self) -> Result<Batch, InputError> {
        if let Some(batch) = self.try_next() {
            return Ok(batch);
        }
        match self.ready.blocking_recv() {
            Some(batch) => Ok(batch),
            None => Err(self.ended()),
        }
    }

    /// Returns the number of batches that are ready, and the maximum number that can be ready.
    pub fn ready(&self) -> [usize; 2] {
        let [next, next_max] = [self.next.is_some(), self.has_next].map(usize::from);
        [self.ready.len() + next, self.ready.max_capacity() + next_max]
    }

    /// Gives a batch back. Its memory is then used for a later batch. Never blocks.
    pub fn recycle(&self, batch: Batch) {
        // The memory is freed if the thread has ended or the channel is full. The channel can be full only
        // if it received batches that were created elsewhere.
        let _ = self.spent.try_send(batch);
    }

    /// Returns the error that ended the input. Must be called only when the channel is closed. The channel
    /// is closed only when the thread ends, so joining the thread does not block for long.
    fn ended(&mut self) -> InputError {
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
            self.panic = Some(message_of(panic.as_ref()));
        }
        if let Some(end) = self.end.get() {
            return match &**end {
                InputError::Ended { epochs, examples, batch } => {
                    InputError::Ended { epochs: *epochs, examples: *examples, batch: *batch }
                }
                _ => InputError::Failed(Arc::clone(end)),
            };
        }
        let message = self.panic.clone().expect("a thread without an error ends only in a panic");
        InputError::Panicked { message }
    }
}

/// Tells the thread to stop. Does not wait for it: the thread may be reading a large file for its current
/// batch, and the caller's thread must go on sending heartbeats.
impl Drop for Prefetch {
    fn drop(&mut self) {
        self.ready.close();
    }
}

/// Runs in the thread: fills batches until the receiver is closed or `fill` returns an error.
fn prepare(
    mut fill: impl FnMut(&mut Batch) -> Result<(), InputError>,
    ready: &mpsc::Sender<Batch>,
    spent: &sync_mpsc::Receiver<Batch>,
    end: &OnceLock<Arc<InputError>>,
) {
    while !ready.is_closed() {
        let mut batch = spent.try_recv().unwrap_or_default();
        if let Err(error) = fill(&mut batch) {
            let _ = end.set(Arc::new(error));
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
    // The error must be a single line, but the message of a panic may have several.
    text.unwrap_or("it gave no message").lines().collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests;
