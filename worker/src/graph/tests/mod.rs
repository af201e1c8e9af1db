//! The compiled graph against oracles: an interpreter in f64 and its finite differences, and another engine; and what
//! it is compiled to, step by step.

mod candle;
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
