//! CUDA kernels, and the devices that run them. The kernels are written in a part of CUDA C++ that is C++ as
//! well. So the same source runs on a card and, in an emulator, on a processor without one.
//!
//! This crate must not depend on graphs, variables or messages.

mod card;
mod driver;
mod emulator;
mod ledger;
mod multiplication;
mod nvrtc;
mod operation;
mod optimizer;
mod signature;
mod source;

pub use card::{Card, CardInfo, cards};
pub use driver::{
    Argument, Driver, DriverError, Event, Graph, Grid, Launch, Memory, Place, Stream, Transfer, Worked,
};
pub use emulator::{Compiler, Emulator};
pub use multiplication::{Epilogue, Multiplier, NoPrecision, Precision};
pub use nvrtc::{ARCHITECTURES, Architecture, Nvrtc};
pub use operation::{Attention, Operation, Places, Span, StepNumbers};
pub use optimizer::{Elements, average, optimizer_scratch_bytes};
pub use source::Source;
