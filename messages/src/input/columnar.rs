//! The spec of Parquet and Arrow files. For each column of the data set, the spec lists the file columns from
//! which its values come. The crate `pushpull-input` reads the files if it was built with the feature
//! `columnar`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{
    COLUMNS_MAX, CategorySpec, ColumnSpec, EXAMPLE_ELEMENTS_MAX, FieldSpec, InputSpecError, NumberSpec,
};
use crate::tensor::{DType, Shape, TensorSpec};

/// The spec of Parquet or Arrow files in which each row is an example. The spec calls the columns of a file
/// fields, as the spec of CSV files does, to distinguish them from the columns of the data set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableSpec {
    /// The files in order.
    pub files: Vec<PathBuf>,
    /// The columns of the data set, and the fields from which they are made. Other fields are ignored.
    pub columns: Vec<TableColumnSpec>,
}

/// A column that is made of one or more fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableColumnSpec {
    /// The name of the column. A graph reads the column through its input of the same name.
    pub name: String,
    /// The fields from which the column is made.
    pub fields: TableFieldsSpec,
}

/// The fields from which a column is made, and their kind. A field is given by its name or by its position
/// in the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TableFieldsSpec {
    /// One number: an `f32` scalar. The field holds integers, floats or booleans. A null gets the value
    /// `missing`, and is an error if `missing` is `None`.
    Number(NumberSpec),
    /// Several numbers: `f32` of shape `[fields]`.
    Numbers(Vec<NumberSpec>),
    /// One category, such as a label: an `i32` scalar. The field holds strings, integers or booleans. A
    /// boolean counts as the word `false` or `true`; with [`super::VocabularySpec::Ids`], its id is 0 or 1.
    /// A null gets the id `unknown`, like a word that is not in the vocabulary.
    Category(CategorySpec),
    /// Several categories: `i32` of shape `[fields]`.
    Categories(Vec<CategorySpec>),
    /// The numbers of a list, such as an image or a vector.
    List(ListSpec),
}

/// A field that holds a list of numbers in each row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListSpec {
    /// The field that holds the list.
    pub field: FieldSpec,
    /// The kind of the numbers.
    pub kind: ListKind,
    /// The shape of one example. A list must have exactly as many numbers as the shape has elements. The list
    /// is flat, or nested with one level for each axis of the shape; in a nested list, each list has the
    /// length of the axis at its level.
    pub shape: Shape,
}

/// The kind of a list's numbers. It determines the type of the column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListKind {
    /// Integers, floats or booleans that become an `f32` column.
    Float,
    /// Integers or booleans that become an `i32` column. A value that does not fit into an `i32` is an error.
    Integer,
    /// Bytes, or integers from 0 to 255, that become an `f32` column, scaled to 0..1.
    Pixels,
    /// Bytes, or integers from 0 to 255, that become an `i32` column, unscaled.
    Bytes,
}

impl ListSpec {
    /// Makes the spec of a field that holds lists.
    pub fn new(field: impl Into<FieldSpec>, kind: ListKind, shape: impl Into<Shape>) -> Self {
        Self { field: field.into(), kind, shape: shape.into() }
    }
}

impl TableColumnSpec {
    /// Makes a column.
    pub fn new(name: impl Into<String>, fields: TableFieldsSpec) -> Self {
        Self { name: name.into(), fields }
    }

    /// Returns the spec of the column: its name, shape and type.
    pub fn column(&self) -> ColumnSpec {
        let example = match &self.fields {
            TableFieldsSpec::Number(_) => TensorSpec::f32([]),
            TableFieldsSpec::Numbers(fields) => TensorSpec::f32([fields.len()]),
            TableFieldsSpec::Category(_) => TensorSpec::i32([]),
            TableFieldsSpec::Categories(fields) => TensorSpec::i32([fields.len()]),
            TableFieldsSpec::List(list) => {
                let dtype = match list.kind {
                    ListKind::Float | ListKind::Pixels => DType::F32,
                    ListKind::Integer | ListKind::Bytes => DType::I32,
                };
                TensorSpec { shape: list.shape.clone(), dtype }
            }
        };
        ColumnSpec { name: self.name.clone(), example }
    }

    /// Returns the fields, in the order of the column's elements.
    pub fn fields(&self) -> Vec<&FieldSpec> {
        match &self.fields {
            TableFieldsSpec::Number(number) => vec![&number.field],
            TableFieldsSpec::Numbers(numbers) => numbers.iter().map(|number| &number.field).collect(),
            TableFieldsSpec::Category(category) => vec![&category.field],
            TableFieldsSpec::Categories(categories) => {
                categories.iter().map(|category| &category.field).collect()
            }
            TableFieldsSpec::List(list) => vec![&list.field],
        }
    }

    fn validate(&self) -> Result<(), InputSpecError> {
        let (name, fields) = (&self.name, self.fields());
        if !(1..=COLUMNS_MAX).contains(&fields.len()) {
            let what = format!("the number of fields of column '{name}'");
            return InputSpecError::range(what, format!("1 to {COLUMNS_MAX}"), fields.len());
        }
        for field in fields {
            let FieldSpec::Name(field) = field else { continue };
            InputSpecError::name(|| format!("a field of column '{name}'"), field)?;
        }
        match &self.fields {
            TableFieldsSpec::Number(number) => number.validate(name),
            TableFieldsSpec::Numbers(all) => all.iter().try_for_each(|number| number.validate(name)),
            TableFieldsSpec::Category(category) => category.validate(name),
            TableFieldsSpec::Categories(all) => all.iter().try_for_each(|category| category.validate(name)),
            TableFieldsSpec::List(list) => {
                let elements = list.shape.checked_elements().unwrap_or(usize::MAX);
                if (1..=EXAMPLE_ELEMENTS_MAX).contains(&elements) {
                    return Ok(());
                }
                let what = format!("the shape of column '{name}'");
                InputSpecError::range(what, format!("of 1 to {EXAMPLE_ELEMENTS_MAX} elements"), &list.shape)
            }
        }
    }
}

impl TableSpec {
    pub(super) fn validate(&self) -> Result<(), InputSpecError> {
        if !(1..=COLUMNS_MAX).contains(&self.columns.len()) {
            let expected = format!("1 to {COLUMNS_MAX}");
            return InputSpecError::range("the number of columns", expected, self.columns.len());
        }
        for (position, column) in self.columns.iter().enumerate() {
            InputSpecError::name(|| format!("column {position}"), &column.name)?;
            column.validate()?;
        }
        Ok(())
    }
}
