//! How a task gets its certificate: it proves to the chief that it knows the secret of the join string, and
//! the chief proves the same. The chief has proved before that it has the authority's key. Wanted properties:
//! (A) a task gets a certificate only if it knows the secret; (B) a proof is worth nothing on another
//! connection, in the other direction, or for another task or key; (C) the chief's certificate is never
//! granted; (D) all messages and the exchange are bounded; (E) a stranger is told only that it is refused.

mod exchange;
mod message;
mod proof;

pub(crate) use exchange::{Grants, ask, grant};
pub use message::EnrolmentError;
pub(crate) use proof::Channel;
