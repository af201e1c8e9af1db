//! Links between tasks of one host: a Unix socket, and memory that both tasks can read. A link is local only
//! if both ends have proved that they are on one host and belong to one user.

mod greeting;
mod loans;
mod names;
mod retired;
mod socket;
#[cfg(test)]
mod tests;

pub(crate) use loans::{Borrower, Lender};
pub(crate) use socket::{Listening, LocalConfig, connect};
