//! A thread that checks the gradients of a draft and copies them to a device while later ones arrive, so that
//! the update need not wait for the copies.
//!
//! Wanted properties: (A) the device has the gradients of one draft at a time; (B) a draft counts only if all
//! of its gradients have been checked and copied; (C) a draft that is dropped leaves no copy behind that has
//! not begun.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex};
use pushpull_cuda::Place;
use pushpull_transport::buffer::Buffer;

use super::{Device, Shared};
use crate::shard::outcome::Outcome;
use crate::threads;

/// The thread of a device, which starts with the first draft, and whether a draft has it. After an error, no
/// other draft gets it.
#[derive(Default)]
pub(super) struct Uploader {
    uploads: OnceLock<Sender<Upload>>,
    taken: Arc<AtomicBool>,
}

/// The memory of a slice's gradient on a device.
#[derive(Clone)]
pub(crate) struct GradientPlace {
    device: Arc<Shared>,
    place: Place,
}

/// The copies of one draft's gradients.
pub(crate) struct Uploads {
    device: Arc<Shared>,
    uploads: Sender<Upload>,
    state: Arc<State>,
}

struct State {
    taken: Arc<AtomicBool>,
    /// Whether the draft has been dropped.
    dropped: AtomicBool,
    progress: Mutex<Progress>,
    /// Notified when a gradient is done.
    done: Condvar,
}

#[derive(Default)]
struct Progress {
    /// The number of gradients that are not done.
    left: usize,
    outcome: Outcome,
    /// Whether a gradient could not be checked or copied.
    failed: bool,
    /// The panic of a check or of a copy.
    panic: Option<Box<dyn Any + Send>>,
}

/// Checks a gradient.
type Check = dyn Fn(&[f32]) -> Outcome + Send;

/// A gradient that is to be checked and copied.
struct Upload {
    state: Arc<State>,
    /// What is needed for it; `None` once it is done.
    work: Option<Work>,
    /// What came of the gradient, once it is checked and copied.
    outcome: Option<Outcome>,
}

struct Work {
    to: GradientPlace,
    gradient: Arc<Buffer>,
    check: Box<Check>,
}

impl GradientPlace {
    pub(super) fn new(device: &Device, place: Place) -> Self {
        Self { device: Arc::clone(&device.0.0), place }
    }

    /// Returns the copies of a draft's gradients, which has none yet. Returns `None` if another draft has
    /// begun with its own, or if an earlier copy has failed.
    pub(crate) fn begin(&self) -> Option<Uploads> {
        let Uploader { uploads, taken } = &self.device.uploader;
        if taken.swap(true, Ordering::Acquire) {
            return None;
        }
        let start = || {
            let (uploads, added) = channel();
            threads::spawn("upload", move || run(&added));
            uploads
        };
        let state = State {
            taken: Arc::clone(taken),
            dropped: AtomicBool::new(false),
            progress: Mutex::default(),
            done: Condvar::new(),
        };
        let uploads = uploads.get_or_init(start).clone();
        Some(Uploads { device: Arc::clone(&self.device), uploads, state: Arc::new(state) })
    }
}

impl Uploads {
    /// Begins to check a gradient, and to copy it if nothing is wrong with it.
    pub(crate) fn add(
        &self,
        to: &GradientPlace,
        gradient: &Arc<Buffer>,
        check: impl Fn(&[f32]) -> Outcome + Send + 'static,
    ) {
        self.state.progress.lock().left += 1;
        let work = Work { to: to.clone(), gradient: Arc::clone(gradient), check: Box::new(check) };
        let upload = Upload { state: Arc::clone(&self.state), work: Some(work), outcome: None };
        // Without its thread, the gradient is dropped at once, and counts as one that has failed.
        let _ = self.uploads.send(upload);
    }

    /// Waits until all gradients are done. Returns what came of their checks, or `None` if one could not be
    /// checked or copied.
    ///
    /// # Panics
    /// If a check or a copy has.
    pub(crate) fn wait(&self) -> Option<Outcome> {
        let mut progress = self.state.progress.lock();
        self.state.done.wait_while(&mut progress, |progress| progress.left > 0);
        if let Some(panic) = progress.panic.take() {
            drop(progress);
            resume_unwind(panic);
        }
        (!progress.failed).then_some(progress.outcome)
    }

    /// Returns whether the copies go to this device.
    pub(crate) fn are_on(&self, device: &Device) -> bool {
        Arc::ptr_eq(&self.device, &device.0.0)
    }
}

impl Drop for Uploads {
    fn drop(&mut self) {
        self.state.dropped.store(true, Ordering::Relaxed);
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // The gradients have their state as well, so none of them is left.
        if !self.progress.get_mut().failed {
            self.taken.store(false, Ordering::Release);
        }
    }
}

impl Work {
    /// Returns what came of the gradient; `None` if it could not be copied.
    fn run(&self) -> Option<Outcome> {
        let outcome = (self.check)(self.gradient.as_f32());
        if outcome.fault.is_some() {
            return Some(outcome);
        }
        let mut driver = self.to.device.driver.lock();
        // A draft for a device that is closed is not applied.
        let copied = driver.as_mut()?.upload(self.to.place, self.gradient.as_bytes());
        if let Err(error) = &copied {
            tracing::warn!(%error, "gradients are no longer copied to the device while they arrive");
        }
        copied.ok().map(|()| outcome)
    }
}

impl Upload {
    fn run(mut self) {
        let Some(work) = self.work.take() else { return };
        if self.state.dropped.load(Ordering::Relaxed) {
            self.outcome = Some(Outcome::default());
            return;
        }
        match catch_unwind(AssertUnwindSafe(|| work.run())) {
            Ok(outcome) => self.outcome = outcome,
            Err(panic) => self.state.progress.lock().panic = Some(panic),
        }
        // What it has is dropped before it counts as done, so that its values have no other owner then.
        drop(work);
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.work = None;
        let mut progress = self.state.progress.lock();
        progress.left -= 1;
        match self.outcome {
            Some(outcome) => progress.outcome.add(outcome),
            None => progress.failed = true,
        }
        drop(progress);
        self.state.done.notify_all();
    }
}

/// Checks and copies gradients until nothing can add any.
fn run(added: &Receiver<Upload>) {
    added.iter().for_each(Upload::run);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use pushpull_messages::id::SliceId;

    use super::*;
    use crate::shard::outcome::Fault;
    use crate::shard::tests::devices::emulated;

    /// Returns a device and its memory for a gradient of four elements.
    fn device() -> Option<(Device, GradientPlace)> {
        let device = Device::open(&emulated()?).unwrap();
        let memory = device.driver().allocate(16).unwrap();
        let place = GradientPlace::new(&device, memory.place());
        Some((device, place))
    }

    fn gradient(element: f32) -> Arc<Buffer> {
        let mut buffer = Buffer::zeroed(16);
        buffer.as_f32_mut().fill(element);
        Arc::new(buffer)
    }

    fn on_device(device: &Device, to: &GradientPlace) -> f32 {
        let mut element = [0; 4];
        device.driver().download(to.place, &mut element).unwrap();
        f32::from_ne_bytes(element)
    }

    /// Waits until the last gradient of a dropped draft is dropped, and begins another draft.
    fn begin_again(to: &GradientPlace) -> Uploads {
        loop {
            match to.begin() {
                Some(uploads) => return uploads,
                None => std::thread::yield_now(),
            }
        }
    }

    #[test]
    fn a_device_has_the_gradients_of_one_draft_at_a_time() {
        let Some((device, to)) = device() else { return };
        let first = to.begin().unwrap();
        assert!(first.are_on(&device) && to.begin().is_none(), "(A)");
        first.add(&to, &gradient(1.0), |gradient| {
            assert_eq!(gradient, [1.0; 4]);
            Outcome { took: Duration::from_secs(1), fault: None }
        });
        assert_eq!(first.wait().unwrap().took, Duration::from_secs(1), "(B)");
        assert_eq!(on_device(&device, &to), 1.0);
        drop(first);
        assert!(begin_again(&to).wait().is_some());
    }

    #[test]
    fn a_gradient_with_a_fault_is_not_copied() {
        let Some((device, to)) = device() else { return };
        let fault = |at| ([at, 0], Fault { slice: SliceId(at as u32), is_finite: false });
        let uploads = to.begin().unwrap();
        uploads.add(&to, &gradient(1.0), |_| Outcome::default());
        for at in [5, 3] {
            let outcome = move |_: &[f32]| Outcome { took: Duration::ZERO, fault: Some(fault(at)) };
            uploads.add(&to, &gradient(f32::NAN), outcome);
        }
        let (place, _) = uploads.wait().unwrap().fault.unwrap();
        assert_eq!((place, on_device(&device, &to)), ([3, 0], 1.0));
    }

    #[test]
    fn a_dropped_draft_leaves_no_copy_behind() {
        let Some((device, to)) = device() else { return };
        let (uploads, (open, gate), (begun, begins)) = (to.begin().unwrap(), channel::<()>(), channel());
        uploads.add(&to, &gradient(1.0), move |_| {
            begun.send(()).unwrap();
            gate.recv().unwrap();
            Outcome::default()
        });
        uploads.add(&to, &gradient(2.0), |_| Outcome::default());
        begins.recv().unwrap();
        drop(uploads);
        assert!(to.begin().is_none(), "(A): a gradient of the first draft is under way");
        open.send(()).unwrap();
        assert!(begin_again(&to).wait().is_some());
        assert_eq!(on_device(&device, &to), 1.0, "(C)");
    }

    #[test]
    fn a_failed_check_or_copy_makes_no_draft() {
        let Some((device, to)) = device() else { return };
        let uploads = to.begin().unwrap();
        uploads.add(&to, &gradient(1.0), |_| panic!("the check failed"));
        let panic = catch_unwind(AssertUnwindSafe(|| uploads.wait())).err().expect("the panic of the check");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"the check failed"));
        assert!(uploads.wait().is_none(), "(B)");
        drop(uploads);
        assert!(to.begin().is_none(), "no other draft gets its thread");

        let other = Device::open(&emulated().unwrap()).unwrap();
        let beyond = GradientPlace::new(&other, to.place);
        let uploads = beyond.begin().unwrap();
        assert!(!uploads.are_on(&device));
        uploads.add(&beyond, &gradient(1.0), |_| Outcome::default());
        assert!(uploads.wait().is_none(), "(B): the device has no such memory");
    }

    #[test]
    fn a_device_is_closed_at_once_although_a_draft_is_left() {
        let Some((device, to)) = device() else { return };
        let uploads = to.begin().unwrap();
        uploads.add(&to, &gradient(1.0), |_| Outcome::default());
        assert!(uploads.wait().is_some());
        drop(device);
        assert!(to.device.driver.lock().is_none());
        uploads.add(&to, &gradient(2.0), |_| Outcome::default());
        assert!(uploads.wait().is_none(), "(B)");
    }
}
