//! The bytes of a frame: fixed prefix, MessagePack header, raw payload aligned to 64 bytes. This module uses
//! no sockets and no clock. Bytes are trusted only after they have passed every check in this module.
//!
//! ```text
//! prefix, 40 bytes, little endian              header, MessagePack          payload, raw
//! ┌───────┬─────────┬──────┬───────┬─────────┐ ┌──────────────────────────┐ ┌──────────────────┐
//! │ magic │ version │ kind │ flags │ request │ │ segment lengths, message │ │ segment, padding │ …
//! └───────┴─────────┴──────┴───────┴─────────┘ └──────────────────────────┘ └──────────────────┘
//!   then: header bytes, payload bytes, crc32c of the payload (if flagged), crc32c of prefix and header
//! ```

mod error;
mod frame;
mod limits;
mod prefix;
#[cfg(test)]
mod tests;

pub use error::WireError;
pub use frame::{Envelope, FrameHead, Incoming, encode_head};
pub(crate) use frame::{Layout, PADDING};
pub use limits::{HEADER_BYTES_MAX, Limits};
pub use prefix::{PREFIX_BYTES, Prefix};
