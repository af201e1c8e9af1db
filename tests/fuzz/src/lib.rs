//! What the fuzz targets share with the programs that need no fuzzer: the bodies of targets, valid inputs,
//! and changes of inputs.

#![forbid(unsafe_code)]

pub mod changes;
pub mod numbers;
pub mod seeds;
pub mod session;
