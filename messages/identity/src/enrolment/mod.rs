//! How a task gets its certificate: it proves to the chief that it knows the secret of the join string, and
//! the chief proves the same. The exchange runs on a TLS connection whose chief end has already proved that it
//! has the authority's key.
//!
//! Wanted properties: (A) a task gets a certificate only if it knows the secret; (B) a proof is worth nothing
//! on another connection, in the other direction, or for another task or key; (C) the certificate of the chief
//! is never granted; (D) every message and the whole exchange are bounded; (E) a stranger is told nothing but
//! that it is refused.

mod exchange;
mod message;
mod proof;

pub(crate) use exchange::{Grants, ask, grant};
pub use message::EnrolmentError;
pub(crate) use proof::Channel;
