//! A data set whose examples are made by a function. This module must not depend on what the examples are.

use std::sync::Arc;

use pushpull_messages::input::ColumnSpec;

use super::into_example::{IntoExample, example};
use super::{Dataset, Reader, Rows};
use crate::InputError;

/// A data set whose examples are the results of a function. [`from_fn`] makes it.
#[derive(Clone)]
pub struct FromFn<F> {
    columns: Arc<[ColumnSpec]>,
    examples: Option<u64>,
    make: F,
}

/// Makes a data set of the examples `make(0)`, `make(1)` and so on. `examples` is their number; `None` makes
/// a set without an end. `make` returns a value for each of `columns`, in their order, or a `Result` if it
/// may fail. `make` must return the same values each time it is called with the same number.
pub fn from_fn<F, R>(columns: Vec<ColumnSpec>, examples: Option<u64>, make: F) -> FromFn<F>
where
    F: Fn(u64) -> R + Clone + Send + Sync + 'static,
    R: IntoExample,
{
    FromFn { columns: columns.into(), examples, make }
}

impl<F, R> Dataset for FromFn<F>
where
    F: Fn(u64) -> R + Clone + Send + Sync + 'static,
    R: IntoExample,
{
    fn columns(&self) -> &[ColumnSpec] {
        &self.columns
    }

    fn examples(&self) -> Option<u64> {
        self.examples
    }

    fn is_endless(&self) -> bool {
        self.examples.is_none()
    }

    fn reader(&self) -> Result<Box<dyn Reader>, InputError> {
        let (end, make) = (self.examples.unwrap_or(u64::MAX), self.make.clone());
        Ok(Box::new(FromFnReader { next: 0, end, make }))
    }
}

struct FromFnReader<F> {
    next: u64,
    end: u64,
    make: F,
}

impl<F: Fn(u64) -> R + Send, R: IntoExample> Reader for FromFnReader<F> {
    fn read(&mut self, examples: usize, rows: &mut Rows) -> Result<usize, InputError> {
        let count = (examples as u64).min(self.end - self.next);
        for _ in 0..count {
            rows.push(&example(self.next, (self.make)(self.next))?)?;
            self.next += 1;
        }
        Ok(count as usize)
    }

    fn skip(&mut self, examples: u64, _: &mut Rows) -> Result<u64, InputError> {
        let count = examples.min(self.end - self.next);
        self.next += count;
        Ok(count)
    }
}
