//! Checkpoints in the memory of the ps tasks: the files that one task keeps, and the store over all tasks.
//! How the tasks reach each other is the caller's.

mod files;
mod store;
#[cfg(test)]
mod tests;

pub use files::{FilesFull, MemoryFiles, Uploader};
pub use store::{FileCallError, FileTasks, MemoryStore};
