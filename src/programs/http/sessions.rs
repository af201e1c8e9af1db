//! The sessions of browsers whose users have entered the token. A browser gets a cookie with a random id, and
//! never the token. The caller supplies the time and the ids. This module must not depend on HTTP.
//!
//! Wanted properties: (A) an id is known from its begin until it is [`LIFE`] old, unless [`SESSIONS_MAX`]
//! others have begun since; (B) at most [`SESSIONS_MAX`] sessions exist.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use subtle::ConstantTimeEq;

/// The time for which a session lasts.
pub(super) const LIFE: Duration = Duration::from_secs(12 * 3600);
/// The maximum number of sessions. When another one begins, the oldest one ends.
const SESSIONS_MAX: usize = 64;
/// The number of random bytes of an id.
const ID_BYTES: usize = 32;

/// The current sessions, oldest first. Their number does not depend on clients without the token, which
/// cannot begin a session.
#[derive(Default)]
pub(super) struct Sessions(VecDeque<(String, Instant)>);

impl Sessions {
    /// Begins a session.
    pub(super) fn begin(&mut self, id: String, now: Instant) {
        if self.0.len() >= SESSIONS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((id, now));
    }

    /// Returns the time at which the session with this id ends; `None` if there is no such session. Ids are
    /// compared in constant time.
    pub(super) fn end_of(&self, id: &str, now: Instant) -> Option<Instant> {
        let is_alive = |began: &Instant| now.saturating_duration_since(*began) < LIFE;
        let is_id = |own: &str| bool::from(own.as_bytes().ct_eq(id.as_bytes()));
        // All of them are compared, so the time does not tell which one it is.
        let found = self.0.iter().filter(|(own, began)| is_alive(began) & is_id(own));
        found.map(|(_, began)| *began + LIFE).max()
    }
}

/// Returns a new random id; `None` if the system has no random numbers.
pub(super) fn new_id() -> Option<String> {
    let mut bytes = [0; ID_BYTES];
    aws_lc_rs::rand::fill(&mut bytes).ok()?;
    let mut text = String::with_capacity(2 * ID_BYTES);
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_has_an_end() {
        let (begin, mut sessions) = (Instant::now(), Sessions::default());
        sessions.begin("a".into(), begin);
        assert_eq!(sessions.end_of("a", begin), Some(begin + LIFE));
        assert_eq!([sessions.end_of("b", begin), sessions.end_of("", begin)], [None; 2]);
        let almost = begin + LIFE - Duration::from_secs(1);
        assert_eq!(sessions.end_of("a", almost), Some(begin + LIFE));
        assert_eq!(sessions.end_of("a", begin + LIFE), None);
    }

    #[test]
    fn the_oldest_session_makes_room() {
        let (now, mut sessions) = (Instant::now(), Sessions::default());
        for number in 0..=SESSIONS_MAX {
            sessions.begin(number.to_string(), now);
        }
        assert_eq!(sessions.0.len(), SESSIONS_MAX);
        let knows = |number: usize| sessions.end_of(&number.to_string(), now).is_some();
        assert!(!knows(0) && knows(1) && knows(SESSIONS_MAX));
    }

    #[test]
    fn ids_are_long_and_differ() {
        let ids = [new_id().unwrap(), new_id().unwrap()];
        assert!(ids[0] != ids[1] && ids.iter().all(|id| id.len() == 64), "{ids:?}");
    }
}
