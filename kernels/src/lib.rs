//! Kernels: loops over numbers, one module for each device.
//!
//! This crate works on slices and shapes only. It must not depend on variables, steps, messages, actors,
//! tokio or serde, and it imports no other crate of this workspace.

pub mod cpu;
