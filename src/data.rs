//! Data sets that a program defines itself: the trait [`Dataset`], arrays in memory, functions, and sets made
//! of other sets.
//!
//! A job reads them by name; see [`Job::with_data`](crate::Job::with_data) and, for worker programs,
//! [`worker_main_with`](crate::worker_main_with).

pub use pushpull_input::{
    Cache, Column, Dataset, Datasets, Filter, FromFn, InMemory, Interleave, IntoExample, Map, Reader,
    Reading, Row, Rows, SkippedRecords, Storage, Zip, from_fn, load, open,
};
