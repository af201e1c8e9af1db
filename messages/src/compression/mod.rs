//! The compression of what workers push and pull: which variables are sent in which encoding. The encodings
//! themselves are in the crate `pushpull-kernels`.

mod encoding;
mod spec;

pub use encoding::{EncodingSpec, UnknownEncoding};
pub use spec::{CompressionError, CompressionSpec, SentAs};
