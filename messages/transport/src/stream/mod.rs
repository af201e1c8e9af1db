//! Frames on a stream of bytes: a TCP connection, or a Unix socket between tasks of one host.

mod receiver;
mod sender;

pub(crate) use receiver::Receiver;
pub(crate) use sender::Sender;
