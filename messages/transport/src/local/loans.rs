//! Lends the segments of payloads to the task at the other end of a local link, and takes them back. The
//! borrower reads them in the lender's memory.
//!
//! Wanted properties: (A) a lent buffer is not written, or used for anything else, until the borrower has
//! returned it or has ended, even if the link ends earlier; (B) a lender lends a bounded number of payloads.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;

use super::retired::{retire, sweep};
use crate::buffer::{Arena, BufferPool, Credit, Payload, Region, SHARED_BYTES_MIN, Segment, payload_layout};
use crate::wire::WireError;

/// The largest number of payloads that are lent at a time on one link. Further payloads are written to the
/// link, so that a borrower that returns nothing occupies a bounded part of the lender's memory.
const LENT_MAX: usize = 16;
/// The largest number of returned payloads that one frame reports.
const RETURNED_MAX: u32 = 1 << 16;
/// What stands for the number of a payload of which nothing is lent.
const NOTHING: u64 = 0;
/// What stands for the place of a segment that is not lent, but follows.
const FOLLOWS: u64 = u64::MAX;

/// What one end of a link has lent to the other end.
pub(super) struct Loans {
    arena: Arc<Arena>,
    /// The payloads that are lent, by their numbers.
    payloads: Mutex<HashMap<u64, Payload>>,
    /// Read until its end, which comes when the borrower has returned everything and the link has ended, or
    /// when its process has ended.
    tether: Option<OwnedFd>,
}

impl Loans {
    pub(super) fn new(arena: Arc<Arena>, tether: OwnedFd) -> Self {
        Self { arena, payloads: Mutex::default(), tether: Some(tether) }
    }

    /// Takes back what the borrower has returned.
    fn take_back(&self, ids: &[u64]) -> Result<(), WireError> {
        let mut payloads = self.payloads.lock();
        let back: Vec<_> = ids.iter().map(|id| payloads.remove(id)).collect();
        // Buffers are freed after the lock has been released.
        drop(payloads);
        back.iter().all(Option::is_some).then_some(()).ok_or(WireError::Loan("a payload was returned twice"))
    }
}

impl Drop for Loans {
    /// (A): what is still lent waits for the end of the borrower.
    fn drop(&mut self) {
        let payloads: Vec<_> = self.payloads.get_mut().drain().map(|(_, payload)| payload).collect();
        if let (false, Some(tether)) = (payloads.is_empty(), self.tether.take()) {
            retire(tether, payloads);
        }
    }
}

/// The payloads that were borrowed and can be returned.
#[derive(Debug)]
pub(super) struct Returned {
    ids: Mutex<Vec<u64>>,
    /// When this is closed, the lender knows that nothing is borrowed any more.
    _tether: Option<OwnedFd>,
}

impl Returned {
    pub(super) fn new(tether: Option<OwnedFd>) -> Self {
        Self { ids: Mutex::default(), _tether: tether }
    }
}

/// The end of a local link that writes: lends segments, and reports what can be returned.
pub(crate) struct Lender {
    /// `None` if this task has no arena, or if the other end cannot map it.
    pub(super) loans: Option<Arc<Loans>>,
    pub(super) returned: Arc<Returned>,
    /// Where copies of what is not in the arena come from.
    pub(super) pool: BufferPool,
    pub(super) last: u64,
}

impl Lender {
    /// Appends to `bytes` what precedes each frame: the number of the payloads that are returned, and their
    /// numbers.
    pub(crate) fn report(&self, bytes: &mut Vec<u8>) {
        let mut ids = self.returned.ids.lock();
        let kept = ids.len().saturating_sub(RETURNED_MAX as usize);
        let reported = ids.split_off(kept);
        drop(ids);
        bytes.extend_from_slice(&(reported.len() as u32).to_le_bytes());
        reported.iter().for_each(|id| bytes.extend_from_slice(&id.to_le_bytes()));
    }

    /// Lends the segments of a payload, and appends to `bytes` what precedes the payload: the number of the
    /// payload, and the place of each segment in the arena; or 0 if nothing is lent. Returns the segments
    /// that are not lent, which follow.
    pub(crate) fn lend<'a>(&mut self, payload: &'a Payload, bytes: &mut Vec<u8>) -> Vec<&'a Segment> {
        let places = self.place(payload);
        if places.iter().all(Option::is_none) {
            bytes.extend_from_slice(&NOTHING.to_le_bytes());
            return payload.segments().iter().collect();
        }
        bytes.extend_from_slice(&self.last.to_le_bytes());
        places.iter().for_each(|place| bytes.extend_from_slice(&place.unwrap_or(FOLLOWS).to_le_bytes()));
        let follows = payload.segments().iter().zip(places).filter(|(_, place)| place.is_none());
        follows.map(|(segment, _)| segment).collect()
    }

    /// Returns the place of each segment in the arena, and lends the payload if one of them is there. Copies
    /// what is elsewhere into the arena if it is large.
    fn place(&mut self, payload: &Payload) -> Vec<Option<u64>> {
        let Some(loans) = &self.loans else { return Vec::new() };
        sweep();
        if loans.payloads.lock().len() >= LENT_MAX {
            return Vec::new();
        }
        let mut places: Vec<_> =
            payload.segments().iter().map(|segment| segment.place(&loans.arena)).collect();
        let mut lent = payload.clone();
        let elsewhere = || payload.segments().iter().zip(&places).filter(|(_, place)| place.is_none());
        if elsewhere().map(|(segment, _)| segment.len()).sum::<usize>() >= SHARED_BYTES_MIN {
            let copy = copy_of(elsewhere().map(|(segment, _)| segment), &self.pool);
            let mut copied = copy.segments().iter().map(|segment| segment.place(&loans.arena));
            places
                .iter_mut()
                .filter(|place| place.is_none())
                .zip(&mut copied)
                .for_each(|(place, at)| *place = at);
            lent = Payload::new([lent.into_segments(), copy.into_segments()].concat());
        }
        if places.iter().any(Option::is_some) {
            self.last += 1;
            loans.payloads.lock().insert(self.last, lent);
        }
        places
    }
}

/// Copies segments into one buffer.
fn copy_of<'a>(segments: impl Iterator<Item = &'a Segment> + Clone, pool: &BufferPool) -> Payload {
    let lengths = segments.clone().map(|segment| segment.len() as u64);
    let (starts, bytes) = payload_layout(lengths).expect("they are in memory");
    let mut buffer = pool.take(bytes as usize);
    for (segment, &start) in segments.clone().zip(&starts) {
        buffer.as_bytes_mut()[start as usize..][..segment.len()].copy_from_slice(segment.as_bytes());
    }
    let buffer = Arc::new(buffer);
    let copy =
        |(segment, start): (&Segment, u64)| Segment::new(Arc::clone(&buffer), start as usize, segment.len());
    Payload::new(segments.zip(starts).map(copy).collect())
}

/// The end of a local link that reads: borrows segments, and takes back what was lent.
pub(crate) struct Borrower {
    /// What this end has lent; `None` if it lends nothing.
    pub(super) loans: Option<Arc<Loans>>,
    /// `None` if the other end has no arena.
    pub(super) region: Option<Arc<Region>>,
    pub(super) returned: Arc<Returned>,
}

impl Borrower {
    /// Checks how many payloads a frame reports as returned, given the encoded number.
    ///
    /// # Errors
    /// Returns an error if there are too many.
    pub(crate) fn decode_returned(bytes: [u8; 4]) -> Result<usize, WireError> {
        let count = u32::from_le_bytes(bytes);
        let fits = count <= RETURNED_MAX;
        fits.then_some(count as usize).ok_or(WireError::Loan("too many payloads were returned at once"))
    }

    /// Takes back payloads, given their encoded numbers.
    ///
    /// # Errors
    /// Returns an error if one of them was not lent.
    pub(crate) fn take_back(&self, bytes: &[u8]) -> Result<(), WireError> {
        let ids: Vec<_> = bytes.chunks_exact(8).map(number).collect();
        match &self.loans {
            Some(loans) => loans.take_back(&ids),
            None if ids.is_empty() => Ok(()),
            None => Err(WireError::Loan("a payload was returned that was never lent")),
        }
    }

    /// Begins to borrow a payload, given its encoded number; `None` if nothing of it is lent.
    pub(crate) fn borrow(&self, id: [u8; 8]) -> Option<Borrowing> {
        let id = Some(u64::from_le_bytes(id)).filter(|&id| id != NOTHING)?;
        let (returned, credit) = (Arc::clone(&self.returned), Mutex::new(None));
        Some(Borrowing { region: self.region.clone(), loan: Arc::new(Loan { returned, id, credit }) })
    }
}

/// A payload that is being borrowed.
pub(crate) struct Borrowing {
    region: Option<Arc<Region>>,
    loan: Arc<Loan>,
}

impl Borrowing {
    /// Returns a borrowed segment, given its encoded place; `None` if its bytes follow.
    ///
    /// # Errors
    /// Returns an error if the other end's memory does not have this place.
    pub(crate) fn segment(&self, place: &[u8], bytes: u64) -> Result<Option<Segment>, WireError> {
        let place = number(place);
        if place == FOLLOWS {
            return Ok(None);
        }
        let region = self.region.as_ref().filter(|region| region.has(place, bytes));
        let region = region.ok_or(WireError::Loan("a segment is outside the other task's memory"))?;
        let (region, loan) = (Arc::clone(region), Arc::<Loan>::clone(&self.loan));
        Ok(Some(Segment::lent(region, loan, place as usize, bytes as usize)))
    }

    /// Keeps the credit for the payload until the payload is returned.
    pub(crate) fn hold(self, credit: Option<Credit>) {
        *self.loan.credit.lock() = credit;
    }
}

/// A payload that was borrowed. It is returned when the last segment is dropped.
#[derive(Debug)]
pub(crate) struct Loan {
    returned: Arc<Returned>,
    id: u64,
    credit: Mutex<Option<Credit>>,
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.returned.ids.lock().push(self.id);
    }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("a number has 8 bytes"))
}
