//! How a task gets its certificate: it and the task with the authority prove to each other the secret of the
//! join string. A client proves the secret of its role. Wanted properties: (A) a task gets a certificate, and
//! a client a role, only with the secret; (B) a proof is worth nothing on another connection, in the other
//! direction, or for another task, key or role; (C) the certificate of the task with the authority is never
//! granted; (D) all messages and exchanges are bounded; (E) a stranger is told only that it is refused.

mod admission;
mod exchange;
mod message;
mod proof;

pub(crate) use admission::{admit, prove_role};
pub(crate) use exchange::{Grants, ask, grant};
pub use message::EnrolmentError;
pub(crate) use proof::Channel;
