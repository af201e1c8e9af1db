//! The compiled graph against oracles: an interpreter in f64 and its finite differences; and what it is
//! compiled to, step by step. The package pushpull-engine-oracle compares it with another engine.

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
