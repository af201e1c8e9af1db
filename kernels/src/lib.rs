//! The kernels: loops over numbers, one module per device.
//!
//! This room knows slices and shapes. It must not know variables, steps, messages, actors, tokio or serde,
//! and it imports no other crate of this workspace.

pub mod cpu;
