//! The source from which the executor reads columns. This module must not depend on the origin of the
//! columns: those of a batch are there before a step begins, those of a part may arrive while it runs.

use pushpull_messages::input::Column;

/// The elements of a column, row-major.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ColumnRef<'a> {
    /// The elements of a column of floats.
    F32(&'a [f32]),
    /// The elements of a column of integers.
    I32(&'a [i32]),
}

/// The reason why a column never arrives, such as `worker/1 has left`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Lost(pub String);

/// A source of columns. The executor requests a column each time that an instruction reads it, and not before
/// the first instruction that reads it.
pub trait ColumnSource {
    /// Checks that the run goes on. The executor asks before each instruction.
    ///
    /// # Errors
    /// If the run was ended from outside. It then ends with this reason.
    fn check(&self) -> Result<(), Lost> {
        Ok(())
    }

    /// Returns true if [`column`](Self::column) would return at once: the column has arrived, or is lost.
    /// Only [`Executor::advance`](crate::Executor::advance) asks.
    ///
    /// # Panics
    /// May panic if the program has no such column.
    fn is_ready(&self, _index: usize) -> bool {
        true
    }

    /// Returns a column. May block until the column has arrived.
    ///
    /// The column must have the type and the number of elements for which the program was compiled; otherwise
    /// the executor panics. A column that comes from another task must therefore be checked on its arrival.
    ///
    /// # Errors
    /// If the column will never arrive. The run then ends with this reason.
    ///
    /// # Panics
    /// May panic if the program has no such column.
    fn column(&self, index: usize) -> Result<ColumnRef<'_>, Lost>;
}

impl<'a> From<&'a Column> for ColumnRef<'a> {
    fn from(column: &'a Column) -> Self {
        match column {
            Column::F32(elements) => Self::F32(elements),
            Column::I32(elements) => Self::I32(elements),
        }
    }
}

/// Provides the columns of a batch, and never blocks.
impl ColumnSource for &[Column] {
    fn column(&self, index: usize) -> Result<ColumnRef<'_>, Lost> {
        Ok(ColumnRef::from(&self[index]))
    }
}

/// Provides the columns of a batch, and never blocks.
impl ColumnSource for Vec<Column> {
    fn column(&self, index: usize) -> Result<ColumnRef<'_>, Lost> {
        Ok(ColumnRef::from(&self[index]))
    }
}
