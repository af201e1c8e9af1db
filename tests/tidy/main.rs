//! Tests that enforce the rules of the house. Each rule is a function from files to complaints. A second
//! test checks each rule with a small bad example, so that a rule that can no longer fail is noticed. Reads
//! sources as text, and does not depend on the crates.

mod commands;
mod contents;
mod cycles;
mod file_header;
mod headings;
mod layers;
mod lengths;
mod links;
mod machine;
mod metrics;
mod modules;
mod mutations;
mod names;
mod safety;
mod seams;
mod source;
mod threats;
mod top_level;
mod tree;
mod words;
