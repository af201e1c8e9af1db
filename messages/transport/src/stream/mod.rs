//! Frames on a stream of bytes: a TCP connection, or a Unix socket between tasks of one host.

#[cfg(target_os = "linux")]
mod early_read;
mod receiver;
mod sender;

#[cfg(target_os = "linux")]
pub(crate) use early_read::EarlyRead;
pub(crate) use receiver::Receiver;
pub(crate) use sender::Sender;
