//! The spec of CSV files, which says which fields form each column. The crate `pushpull-input` reads the
//! files.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{COLUMNS_MAX, ColumnSpec, InputSpecError};
use crate::tensor::TensorSpec;

/// The spec of CSV files in which each row is an example. Fields may be quoted, and empty lines are skipped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CsvSpec {
    /// The files in order, each plain or packed with gzip or zstd.
    pub files: Vec<PathBuf>,
    /// The columns, and the fields from which they are made. Other fields are ignored.
    pub columns: Vec<CsvColumnSpec>,
    /// Whether the first row of every file names the fields.
    #[serde(default)]
    pub header: bool,
    /// The ASCII character between two fields.
    #[serde(default = "comma")]
    pub delimiter: char,
    /// The number of lines to skip at the start of every file.
    #[serde(default)]
    pub skip_lines: u32,
    /// Whether spaces around a field are removed.
    #[serde(default)]
    pub trim: bool,
}

fn comma() -> char {
    ','
}

impl Default for CsvSpec {
    fn default() -> Self {
        Self {
            files: Vec::new(),
            columns: Vec::new(),
            header: false,
            delimiter: comma(),
            skip_lines: 0,
            trim: false,
        }
    }
}

/// A column that is made of one or more fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CsvColumnSpec {
    /// The name of the column. A graph reads the column through its input of the same name.
    pub name: String,
    /// The fields from which the column is made.
    pub fields: CsvFieldsSpec,
}

/// The fields from which a column is made, and their kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum CsvFieldsSpec {
    /// One number: an `f32` scalar.
    Number(NumberSpec),
    /// Several numbers: `f32` of shape `[fields]`.
    Numbers(Vec<NumberSpec>),
    /// One category, such as a label: an `i32` scalar.
    Category(CategorySpec),
    /// Several categories: `i32` of shape `[fields]`.
    Categories(Vec<CategorySpec>),
}

/// A reference to a field of a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum FieldSpec {
    /// The position of the field in the row, counted from 0.
    Index(u32),
    /// The name of the field in the header.
    Name(String),
}

impl From<u32> for FieldSpec {
    fn from(index: u32) -> Self {
        Self::Index(index)
    }
}

impl From<&str> for FieldSpec {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

impl std::fmt::Display for FieldSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Index(index) => write!(f, "field {index}"),
            Self::Name(name) => write!(f, "field '{name}'"),
        }
    }
}

/// A field that holds a finite number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumberSpec {
    /// The field that holds the number.
    pub field: FieldSpec,
    /// The value that an empty field stands for; must be finite. With `None`, an empty field is an error.
    #[serde(default)]
    pub missing: Option<f32>,
}

/// A field that holds one of several words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CategorySpec {
    /// The field that holds the word.
    pub field: FieldSpec,
    /// The words that the field may hold, and their ids.
    pub vocabulary: VocabularySpec,
    /// The id of an empty field and of words outside the vocabulary. With `None`, such a field is an error.
    #[serde(default)]
    pub unknown: Option<i32>,
}

/// A vocabulary: the words that a field may hold, and their ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum VocabularySpec {
    /// The field holds the id itself, as a decimal number.
    Ids,
    /// The words, in the order of their ids. The first word has the id 0.
    Words(Vec<String>),
    /// The id of each word; several spellings may share an id.
    Map(BTreeMap<String, i32>),
}

impl NumberSpec {
    /// Makes a number field that must not be empty.
    pub fn new(field: impl Into<FieldSpec>) -> Self {
        Self { field: field.into(), missing: None }
    }

    /// Checks the value that stands for an empty field. `column` is the column's name, which the error
    /// quotes.
    pub(super) fn validate(&self, column: &str) -> Result<(), InputSpecError> {
        match self.missing.filter(|missing| !missing.is_finite()) {
            Some(missing) => {
                let what = format!("column '{column}': the value of an empty {}", self.field);
                InputSpecError::range(what, "finite", missing)
            }
            None => Ok(()),
        }
    }
}

impl CategorySpec {
    /// Makes a field whose words have the ids 0, 1 and so on, in this order. Other words have the id
    /// `unknown`; if `unknown` is `None`, they are an error.
    pub fn new(field: impl Into<FieldSpec>, words: &[&str], unknown: Option<i32>) -> Self {
        let words = words.iter().map(|&word| word.to_owned()).collect();
        Self { field: field.into(), vocabulary: VocabularySpec::Words(words), unknown }
    }

    /// Makes a field whose words have these ids. Other words are an error.
    pub fn map(field: impl Into<FieldSpec>, words: &[(&str, i32)]) -> Self {
        let words = words.iter().map(|&(word, id)| (word.to_owned(), id)).collect();
        Self { field: field.into(), vocabulary: VocabularySpec::Map(words), unknown: None }
    }

    /// Checks that no word is listed twice. `column` is the column's name, which the error quotes.
    pub(super) fn validate(&self, column: &str) -> Result<(), InputSpecError> {
        let VocabularySpec::Words(words) = &self.vocabulary else { return Ok(()) };
        let mut sorted: Vec<&String> = words.iter().collect();
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(twice) => {
                let what = format!("column '{column}': a word of {}'s vocabulary", self.field);
                InputSpecError::range(what, "listed once", format!("'{}' twice", twice[0]))
            }
            None => Ok(()),
        }
    }
}

impl CsvColumnSpec {
    /// Returns the spec of the column: its name, shape and type.
    pub fn column(&self) -> ColumnSpec {
        let example = match &self.fields {
            CsvFieldsSpec::Number(_) => TensorSpec::f32([]),
            CsvFieldsSpec::Numbers(fields) => TensorSpec::f32([fields.len()]),
            CsvFieldsSpec::Category(_) => TensorSpec::i32([]),
            CsvFieldsSpec::Categories(fields) => TensorSpec::i32([fields.len()]),
        };
        ColumnSpec { name: self.name.clone(), example }
    }

    fn fields(&self) -> Vec<&FieldSpec> {
        match &self.fields {
            CsvFieldsSpec::Number(number) => vec![&number.field],
            CsvFieldsSpec::Numbers(numbers) => numbers.iter().map(|number| &number.field).collect(),
            CsvFieldsSpec::Category(category) => vec![&category.field],
            CsvFieldsSpec::Categories(categories) => {
                categories.iter().map(|category| &category.field).collect()
            }
        }
    }

    fn numbers(&self) -> &[NumberSpec] {
        match &self.fields {
            CsvFieldsSpec::Number(number) => std::slice::from_ref(number),
            CsvFieldsSpec::Numbers(numbers) => numbers,
            CsvFieldsSpec::Category(_) | CsvFieldsSpec::Categories(_) => &[],
        }
    }

    fn categories(&self) -> &[CategorySpec] {
        match &self.fields {
            CsvFieldsSpec::Category(category) => std::slice::from_ref(category),
            CsvFieldsSpec::Categories(categories) => categories,
            CsvFieldsSpec::Number(_) | CsvFieldsSpec::Numbers(_) => &[],
        }
    }
}

impl CsvSpec {
    pub(super) fn validate(&self) -> Result<(), InputSpecError> {
        let d = self.delimiter;
        if !d.is_ascii() || matches!(d, '"' | '\n' | '\r' | '\0') {
            return InputSpecError::range(
                "the delimiter",
                "one ASCII character other than a quote or a line end",
                d.escape_default(),
            );
        }
        if !(1..=COLUMNS_MAX).contains(&self.columns.len()) {
            return InputSpecError::range(
                "the number of columns",
                format!("1 to {COLUMNS_MAX}"),
                self.columns.len(),
            );
        }
        for (position, column) in self.columns.iter().enumerate() {
            InputSpecError::name(|| format!("column {position}"), &column.name)?;
            let fields = column.fields();
            if !(1..=COLUMNS_MAX).contains(&fields.len()) {
                let what = format!("the number of fields of column '{}'", column.name);
                return InputSpecError::range(what, format!("1 to {COLUMNS_MAX}"), fields.len());
            }
            if let Some(name) =
                fields.iter().find(|field| matches!(field, FieldSpec::Name(_)) && !self.header)
            {
                let what = format!("column '{}': a field of a file without a header", column.name);
                return InputSpecError::range(what, "given by its position", name);
            }
            for field in fields {
                let FieldSpec::Name(name) = field else { continue };
                InputSpecError::name(|| format!("a field of column '{}'", column.name), name)?;
            }
            column.numbers().iter().try_for_each(|number| number.validate(&column.name))?;
            column.categories().iter().try_for_each(|category| category.validate(&column.name))?;
        }
        Ok(())
    }
}
