//! A data set that joins each example of one set with the example at the same position in another set. This
//! module must not depend on what the sets contain.

use std::sync::Arc;

use pushpull_messages::input::ColumnSpec;

use super::{Dataset, Reader, Rows, read_some};
use crate::InputError;

/// A data set whose examples have the columns of two sets. [`Dataset::zip`] makes such a set.
#[derive(Clone)]
pub struct Zip<A, B> {
    first: A,
    second: B,
    columns: Arc<[ColumnSpec]>,
}

impl<A: Dataset, B: Dataset> Zip<A, B> {
    pub(super) fn new(first: A, second: B) -> Result<Self, InputError> {
        for column in second.columns() {
            if first.columns().iter().any(|other| other.name == column.name) {
                let (name, expected) = (column.name.clone(), column.example.clone());
                let got = "another column of that name".to_owned();
                return Err(InputError::Column { name, expected, examples: 1, got });
            }
        }
        let columns = [first.columns(), second.columns()].concat().into();
        Ok(Self { first, second, columns })
    }
}

impl<A: Dataset, B: Dataset> Dataset for Zip<A, B> {
    fn columns(&self) -> &[ColumnSpec] {
        &self.columns
    }

    fn examples(&self) -> Option<u64> {
        match (self.first.examples(), self.second.examples()) {
            (Some(first), Some(second)) => Some(first.min(second)),
            (Some(one), None) if self.second.is_endless() => Some(one),
            (None, Some(one)) if self.first.is_endless() => Some(one),
            _ => None,
        }
    }

    fn is_endless(&self) -> bool {
        self.first.is_endless() && self.second.is_endless()
    }

    fn reader(&self) -> Result<Box<dyn Reader>, InputError> {
        let (first, second) = (Half::new(&self.first)?, Half::new(&self.second)?);
        Ok(Box::new(ZipReader { first, second }))
    }

    fn rows(&self) -> Result<Rows, InputError> {
        self.first.rows()?.beside(&self.second.rows()?)
    }
}

/// The reader of one of the two sets, and the examples read from it.
struct Half {
    reader: Box<dyn Reader>,
    rows: Rows,
}

impl Half {
    fn new(set: &impl Dataset) -> Result<Self, InputError> {
        Ok(Self { reader: set.reader()?, rows: set.rows()? })
    }

    /// Reads exactly `examples` examples, or fewer at the end of the set.
    fn read(&mut self, examples: usize) -> Result<usize, InputError> {
        self.rows.clear();
        let mut read = 0;
        while read < examples {
            match read_some(&mut *self.reader, examples - read, &mut self.rows)? {
                0 => break,
                more => read += more,
            }
        }
        Ok(read)
    }
}

struct ZipReader {
    first: Half,
    second: Half,
}

impl Reader for ZipReader {
    fn read(&mut self, examples: usize, rows: &mut Rows) -> Result<usize, InputError> {
        let count = self.first.read(examples)?;
        let count = count.min(self.second.read(count)?);
        for index in 0..count {
            rows.join(&self.first.rows, &self.second.rows, index)?;
        }
        Ok(count)
    }

    fn skip(&mut self, examples: u64, _: &mut Rows) -> Result<u64, InputError> {
        let Self { first, second } = self;
        let count = first.reader.skip(examples, &mut first.rows)?;
        Ok(count.min(second.reader.skip(count, &mut second.rows)?))
    }
}
