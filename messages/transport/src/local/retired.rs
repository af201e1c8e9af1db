//! What was lent on a link that has ended. The borrower may still read it, for example to train with values
//! that it has pulled.

use std::os::fd::OwnedFd;

use parking_lot::Mutex;

use crate::buffer::Payload;

/// Each item has what was lent on one link, and the pipe that ends when the borrower reads it no more.
static RETIRED: Mutex<Vec<(OwnedFd, Vec<Payload>)>> = Mutex::new(Vec::new());

/// Keeps the payloads until `tether` has ended.
pub(super) fn retire(tether: OwnedFd, payloads: Vec<Payload>) {
    RETIRED.lock().push((tether, payloads));
    sweep();
}

/// Frees the payloads that no borrower reads any more.
pub(super) fn sweep() {
    let mut retired = RETIRED.lock();
    if retired.is_empty() {
        return;
    }
    let over: Vec<_> = retired.extract_if(.., |(tether, _)| has_ended(tether)).collect();
    // Buffers are freed after the lock has been released.
    drop(retired);
    drop(over);
}

/// Returns whether nobody has the other end of a pipe any more.
fn has_ended(tether: &OwnedFd) -> bool {
    let mut byte = [0];
    match rustix::io::read(tether, &mut byte) {
        // The borrower writes nothing. If it did, that would not be the end.
        Ok(bytes) => bytes == 0,
        Err(_) => false,
    }
}
