//! The values that a task's parts of a run receive. Each value arrives once, and a part waits until a value
//! that it needs has arrived or the run has failed.
//!
//! Required properties: (A) a value that arrives is the one that is read; (B) a part that waits is woken by
//! the arrival or by the failure; (C) only values that the plan names, with their shapes, are kept.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use pushpull_messages::tensor::{Tensor, TensorSpec};

use crate::control::Control;
use crate::error::RunError;

/// The values that a part receives, as the plan names them: the shape and type of each, in the order of their
/// positions, and the position of each key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Received {
    specs: Vec<TensorSpec>,
    positions: BTreeMap<u64, usize>,
}

impl Received {
    /// Adds a value, and returns its position.
    pub fn add(&mut self, key: u64, spec: TensorSpec) -> usize {
        let position = self.specs.len();
        self.specs.push(spec);
        self.positions.insert(key, position);
        position
    }

    /// Returns the number of values.
    pub const fn len(&self) -> usize {
        self.specs.len()
    }

    /// Returns the shape and type of the value at this position.
    pub fn spec(&self, position: usize) -> &TensorSpec {
        &self.specs[position]
    }

    /// Returns the position of the value with this key.
    ///
    /// # Errors
    /// If the plan does not name the value, or names another shape or type.
    pub fn find(&self, key: u64, got: &TensorSpec) -> Result<usize, String> {
        let Some(&position) = self.positions.get(&key) else {
            return Err(format!("got value {key}, which no operation of the part reads"));
        };
        match &self.specs[position] {
            expected if expected == got => Ok(position),
            expected => Err(format!("value {key} is {got}, expected {expected}")),
        }
    }
}

/// The received values of one part.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    values: Vec<OnceLock<Arc<Tensor>>>,
}

impl Inbox {
    pub fn new(received: &Received) -> Self {
        Self { values: std::iter::repeat_with(OnceLock::new).take(received.len()).collect() }
    }

    /// Stores a value that has arrived. Ignores a value that has arrived before.
    ///
    /// # Errors
    /// Those of [`Received::find`].
    pub fn put(
        &self,
        received: &Received,
        control: &Control,
        key: u64,
        value: Arc<Tensor>,
    ) -> Result<(), String> {
        let position = received.find(key, &value.spec())?;
        let _ = self.values[position].set(value);
        control.notify();
        Ok(())
    }

    /// Returns true if the value at this position has arrived.
    pub fn has(&self, position: usize) -> bool {
        self.values[position].get().is_some()
    }

    /// Waits until the value at this position has arrived.
    ///
    /// # Errors
    /// Returns the error if the run has failed.
    pub fn wait(&self, control: &Control, position: usize) -> Result<&Arc<Tensor>, RunError> {
        control.check()?;
        if let Some(value) = self.values[position].get() {
            return Ok(value);
        }
        let mut waiting = control.waiting();
        loop {
            if let Some(value) = self.values[position].get() {
                return Ok(value);
            }
            waiting.wait()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    fn received() -> Received {
        let mut received = Received::default();
        let positions = [3, 5].map(|key| received.add(key, TensorSpec::f32([2])));
        assert_eq!((positions, received.len()), ([0, 1], 2));
        received
    }

    /// Waits until a thread of this process sleeps on the control, so that it needs the notice.
    fn until_asleep(
        thread: &std::thread::ScopedJoinHandle<'_, Result<Arc<Tensor>, String>>,
        began: &AtomicBool,
    ) {
        while !began.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        // The thread takes the lock before it sleeps, and gives it back when it sleeps.
        std::thread::sleep(Duration::from_millis(20));
        assert!(!thread.is_finished());
    }

    #[test]
    fn a_wait_ends_with_the_value_or_the_failure() {
        let (received, control) = (received(), Control::default());
        let inbox = Inbox::new(&received);
        let value = Arc::new(Tensor::from(vec![1.0f32, 2.0]));
        let began = [AtomicBool::new(false), AtomicBool::new(false)];
        let wait = |position: usize| {
            began[position].store(true, Ordering::SeqCst);
            inbox.wait(&control, position).cloned().map_err(|error| error.to_string())
        };
        std::thread::scope(|scope| {
            let (first, second) = (scope.spawn(|| wait(1)), scope.spawn(|| wait(0)));
            until_asleep(&first, &began[1]);
            until_asleep(&second, &began[0]);
            inbox.put(&received, &control, 5, Arc::clone(&value)).unwrap();
            assert_eq!(first.join().unwrap().as_deref(), Ok(&*value));
            control.fail(RunError::Aborted("the other end is gone".into()));
            control.fail(RunError::Aborted("a later reason".into()));
            assert_eq!(second.join().unwrap(), Err("the other end is gone".into()));
        });
        let error = inbox.wait(&control, 1).unwrap_err().to_string();
        assert_eq!(error, "the other end is gone", "a run that has failed ends, even where it could go on");
    }

    #[test]
    fn only_planned_values_are_kept() {
        let (received, control) = (received(), Control::default());
        let inbox = Inbox::new(&received);
        let put = |key, value: Tensor| inbox.put(&received, &control, key, Arc::new(value));
        assert!(put(4, Tensor::from(vec![1.0f32, 2.0])).unwrap_err().contains("no operation"));
        let error = put(3, Tensor::from(vec![1.0f32])).unwrap_err();
        assert_eq!(error, "value 3 is f32[1], expected f32[2]");
        put(3, Tensor::from(vec![1.0f32, 2.0])).unwrap();
        put(3, Tensor::from(vec![3.0f32, 4.0])).unwrap();
        let kept = inbox.wait(&control, 0).unwrap();
        assert_eq!(kept.f32s(), Some(&[1.0, 2.0][..]), "the first value counts");
    }
}
