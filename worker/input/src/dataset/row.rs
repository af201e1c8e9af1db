//! One example of a block, as user-defined functions see it. This module must not depend on readers.

use pushpull_messages::input::{Column, ColumnSpec};
use pushpull_messages::tensor::DType;

use super::Storage;

/// One example: a value for each column.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    columns: &'a [(ColumnSpec, Storage)],
    index: usize,
}

impl<'a> Row<'a> {
    pub(super) fn new(columns: &'a [(ColumnSpec, Storage)], index: usize) -> Self {
        Self { columns, index }
    }

    /// Returns the elements of a column of floats, row-major; pixels are scaled to 0..1. Returns `None` if
    /// there is no such column of floats.
    pub fn f32(&self, column: &str) -> Option<Vec<f32>> {
        let (spec, storage) = self.find(column, DType::F32)?;
        let mut values = vec![0.0; spec.example.shape.elements()];
        storage.fill_f32(self.index, &mut values);
        Some(values)
    }

    /// Returns the elements of a column of integers, row-major; `None` if there is no such column of
    /// integers.
    pub fn i32(&self, column: &str) -> Option<Vec<i32>> {
        let (spec, storage) = self.find(column, DType::I32)?;
        let mut values = vec![0; spec.example.shape.elements()];
        storage.fill_i32(self.index, &mut values);
        Some(values)
    }

    /// Returns the values of all columns, in the order of the columns.
    pub fn values(&self) -> Vec<Column> {
        let value = |(spec, _): &(ColumnSpec, Storage)| match spec.example.dtype {
            DType::F32 => self.f32(&spec.name).map(Column::F32),
            _ => self.i32(&spec.name).map(Column::I32),
        };
        self.columns.iter().filter_map(value).collect()
    }

    fn find(&self, column: &str, dtype: DType) -> Option<&'a (ColumnSpec, Storage)> {
        self.columns.iter().find(|(spec, _)| spec.name == column && spec.example.dtype == dtype)
    }
}

/// Shows the values.
impl std::fmt::Debug for Row<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.values()).finish()
    }
}
