//! Tests of the compiled graph: against an interpreter in f64 and finite differences of it, and of the
//! instructions that it is compiled to. The package pushpull-engine-oracle compares it with another engine.

mod devices;
mod errors;
mod gradients;
mod images;
mod index;
mod interpreter;
mod sketch;
mod structure;
mod trial;
mod wild;
