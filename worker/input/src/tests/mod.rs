//! What the readers' tests share.

pub(crate) mod damaged;
