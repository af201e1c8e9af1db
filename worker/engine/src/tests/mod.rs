//! Tests the compiled graph against an interpreter in f64 and against finite differences of that
//! interpreter. Also tests the instructions to which a graph is compiled. The package pushpull-engine-oracle
//! compares the engine with another engine, candle.

mod attention;
mod cuda;
mod cut;
mod devices;
mod errors;
mod exchange;
mod fetches;
mod flights;
mod gradients;
mod hostile_graphs;
mod images;
mod index;
mod interpreter;
mod pausing;
mod random_graph;
mod stages;
mod structure;
mod trial;
