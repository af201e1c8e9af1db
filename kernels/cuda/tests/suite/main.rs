//! The suite of operations. Each device that can run kernels, the processor included, must agree with a
//! reference in `f64`: on sizes with and without tails, on empty inputs, and on numbers that are not finite.

mod attentions;
mod budgets;
mod card;
mod case;
mod chains;
mod convolutions;
mod devices;
mod dropouts;
mod elements;
mod embeddings;
mod faults;
mod libraries;
mod losses;
mod metrics;
mod mutations;
mod norms;
mod numbers;
mod optimizers;
mod order;
mod pipeline;
mod pools;
mod products;
mod reductions;
mod reference;
mod rows;
mod runner;
