//! Kernels: loops over numbers, one module for each device.
//!
//! This crate knows slices and shapes. It must not know variables, steps, messages, actors, tokio or serde,
//! and it imports no other crate of this workspace.

pub mod cpu;
