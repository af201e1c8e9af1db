//! The newest of something as JSON: written once for all who want it.

use std::sync::{Arc, Mutex, PoisonError};

use actix_web::web::Bytes;
use serde::Serialize;

/// The newest one that was asked for.
pub(super) struct Rendered<T>(Mutex<Option<(Arc<T>, Bytes)>>);

impl<T> Default for Rendered<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> Rendered<T> {
    /// That one, on one line, as `shown` says it.
    pub(super) fn of<S: Serialize>(&self, value: &Arc<T>, shown: impl FnOnce(&T) -> S) -> Bytes {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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

/// A snapshot as JSON.
pub(super) fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("a snapshot can be written as JSON").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_written_once() {
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
