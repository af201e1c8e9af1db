//! The rules of the house, executed. Each rule is a function from files to complaints; each is also shown a
//! small bad example, so that a rule that can no longer fail is noticed. Reads sources as text: it must know
//! no type of the crates.

mod contents;
mod cycles;
mod door;
mod layers;
mod lengths;
mod links;
mod machine;
mod metrics;
mod modules;
mod names;
mod safety;
mod source;
mod top_level;
mod tree;
mod words;
