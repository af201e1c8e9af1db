//! Links between tasks of one host are local only on Linux. On other systems, no value of these types exists.

use crate::buffer::{Credit, Payload, Segment};
use crate::wire::WireError;

pub(crate) enum Lender {}

impl Lender {
    pub(crate) fn report(&self, _: &mut Vec<u8>) {
        match *self {}
    }

    pub(crate) fn lend<'a>(&mut self, _: &'a Payload, _: &mut Vec<u8>) -> Vec<&'a Segment> {
        match *self {}
    }
}

pub(crate) enum Borrower {}

impl Borrower {
    pub(crate) fn decode_returned(_: [u8; 4]) -> Result<usize, WireError> {
        Err(WireError::Loan("payloads are not lent on this system"))
    }

    pub(crate) fn take_back(&self, _: &[u8]) -> Result<(), WireError> {
        match *self {}
    }

    pub(crate) fn borrow(&self, _: [u8; 8]) -> Option<Borrowing> {
        match *self {}
    }
}

pub(crate) enum Borrowing {}

impl Borrowing {
    pub(crate) fn segment(&self, _: &[u8], _: u64) -> Result<Option<Segment>, WireError> {
        match *self {}
    }

    pub(crate) fn hold(self, _: Option<Credit>) {
        match self {}
    }
}
