//! Text files of rows and fields, as data: which fields become which columns.
//! Knows neither how a file is read nor what is in it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{COLUMNS_MAX, ColumnSpec, InputSpecError};
use crate::tensor::TensorSpec;

/// Rows of fields, one row an example. A field may be quoted; empty lines are no rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CsvSpec {
    /// The files, each plain or gzipped, one after the other.
    pub files: Vec<PathBuf>,
    /// What becomes of the fields; a field that no column asks for is not looked at.
    pub columns: Vec<CsvColumnSpec>,
    /// Whether the first row of every file has the fields' names.
    #[serde(default)]
    pub header: bool,
    /// What stands between two fields: one ASCII character.
    #[serde(default = "comma")]
    pub delimiter: char,
    /// So many lines at the begin of every file are no rows.
    #[serde(default)]
    pub skip_lines: u32,
    /// Whether spaces around a field are not part of it.
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

/// A column that is made of one field or of several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CsvColumnSpec {
    /// What a graph's input asks for.
    pub name: String,
    /// The fields.
    pub fields: CsvFieldsSpec,
}

/// The fields of a column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum CsvFieldsSpec {
    /// An `f32` scalar.
    Number(NumberSpec),
    /// `f32` of shape `[fields]`.
    Numbers(Vec<NumberSpec>),
    /// An `i32` scalar, such as a label.
    Category(CategorySpec),
    /// `i32` of shape `[fields]`.
    Categories(Vec<CategorySpec>),
}

/// A field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum FieldSpec {
    /// By its position, counted from 0.
    Index(u32),
    /// By its name in the header.
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
    /// Which one.
    pub field: FieldSpec,
    /// What an empty field stands for, finite as any other; an error where this is not said.
    #[serde(default)]
    pub missing: Option<f32>,
}

/// A field that holds one of several words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CategorySpec {
    /// Which one.
    pub field: FieldSpec,
    /// Which word has which id.
    pub vocabulary: VocabularySpec,
    /// The id of a word that is not in the vocabulary, and of an empty field; an error where this is not said.
    #[serde(default)]
    pub unknown: Option<i32>,
}

/// Words and their ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum VocabularySpec {
    /// The field holds the id itself, as a decimal number.
    Ids,
    /// The first word has id 0, the second 1, and so on.
    Words(Vec<String>),
    /// Each word with its id: several spellings may have the same.
    Map(BTreeMap<String, i32>),
}

impl NumberSpec {
    /// A field that must not be empty.
    pub fn new(field: impl Into<FieldSpec>) -> Self {
        Self { field: field.into(), missing: None }
    }
}

impl CategorySpec {
    /// A field whose words have ids in this order, and all others `unknown`.
    pub fn new(field: impl Into<FieldSpec>, words: &[&str], unknown: Option<i32>) -> Self {
        let words = words.iter().map(|&word| word.to_owned()).collect();
        Self { field: field.into(), vocabulary: VocabularySpec::Words(words), unknown }
    }

    /// A field whose words have these ids; any other word is an error.
    pub fn map(field: impl Into<FieldSpec>, words: &[(&str, i32)]) -> Self {
        let words = words.iter().map(|&(word, id)| (word.to_owned(), id)).collect();
        Self { field: field.into(), vocabulary: VocabularySpec::Map(words), unknown: None }
    }
}

impl CsvColumnSpec {
    /// What a graph sees of it.
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
                "one ASCII character, and no quote or line end",
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
                return InputSpecError::range(what, "told by its position", name);
            }
            for field in fields {
                let FieldSpec::Name(name) = field else { continue };
                InputSpecError::name(|| format!("a field of column '{}'", column.name), name)?;
            }
            let mut missing =
                column.numbers().iter().filter_map(|number| Some((&number.field, number.missing?)));
            if let Some((field, missing)) = missing.find(|(_, missing)| !missing.is_finite()) {
                let what = format!("column '{}': what an empty {field} stands for", column.name);
                return InputSpecError::range(what, "finite", missing);
            }
            for category in column.categories() {
                let VocabularySpec::Words(words) = &category.vocabulary else { continue };
                let mut sorted: Vec<&String> = words.iter().collect();
                sorted.sort_unstable();
                if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
                    let what = format!("column '{}': a word of {}'s vocabulary", column.name, category.field);
                    return InputSpecError::range(what, "there once", format!("'{}' twice", twice[0]));
                }
            }
        }
        Ok(())
    }
}
