//! Renders snapshots as JSON. Each snapshot is rendered only once for all clients.

use std::sync::Arc;

use actix_web::web::Bytes;
use parking_lot::Mutex;
use pushpull_messages::observe::ChiefSnapshot;
use serde::Serialize;

use crate::programs::exposure::Exposure;

/// The newest value that was rendered, and its JSON.
pub(super) struct Rendered<T>(Mutex<Option<(Arc<T>, Bytes)>>);

impl<T> Default for Rendered<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> Rendered<T> {
    /// Returns `shown(value)` as JSON on one line. Renders the value only if it is not the same `Arc` as in
    /// the previous call.
    pub(super) fn of<S: Serialize>(&self, value: &Arc<T>, shown: impl FnOnce(&T) -> S) -> Bytes {
        let mut last = self.0.lock();
        match &*last {
            Some((known, json)) if Arc::ptr_eq(known, value) => json.clone(),
            _ => {
                let json = json(&shown(value));
                *last = Some((Arc::clone(value), json.clone()));
                json
            }
        }
    }
}

/// The chief's snapshot of the job as JSON.
pub(super) struct JobText {
    accepts_wishes: bool,
    exposure: Exposure,
    rendered: Rendered<ChiefSnapshot>,
}

impl JobText {
    /// Makes an empty cache. `accepts_wishes` is true if clients may request to save or stop the job, and
    /// `exposure` tells whether other hosts reach the chief without a proof of who they are.
    pub(super) fn new(accepts_wishes: bool, exposure: Exposure) -> Self {
        Self { accepts_wishes, exposure, rendered: Rendered::default() }
    }

    /// Returns the snapshot as JSON.
    pub(super) fn of(&self, job: &Arc<ChiefSnapshot>) -> Bytes {
        let (accepts_wishes, insecure) = (self.accepts_wishes, self.exposure.is_exposed());
        self.rendered.of(job, |job| ChiefSnapshot { accepts_wishes, insecure, ..job.clone() })
    }
}

/// Returns a snapshot as JSON.
pub(super) fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("a snapshot can be written as JSON").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_snapshot_is_written_once() {
        let (rendered, mut written) = (Rendered::default(), 0);
        let (one, other) = (Arc::new(1), Arc::new(2));
        let mut ask = |value| {
            rendered.of(value, |value| {
                written += 1;
                vec![*value]
            })
        };
        let asked = [&one, &one, &other, &other, &one].map(&mut ask);
        assert_eq!(asked.map(|json| json.to_vec()), [b"[1]", b"[1]", b"[2]", b"[2]", b"[1]"]);
        assert_eq!(written, 3);
    }
}
