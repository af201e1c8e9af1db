//! Finds, among the fields of a file, those that a spec names. This module must not depend on formats.

use pushpull_messages::input::FieldSpec;

use crate::TableError;

/// The maximum number of fields that an error message lists.
const LISTED_MAX: usize = 50;

/// An error message that lists field names shows at most this many characters of the list.
const SHOWN_BYTES_MAX: usize = 400;

/// A field that a column needs, and the number of elements that the field has in each row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wanted {
    pub(super) field: FieldSpec,
    pub(super) elements: usize,
}

/// The fields of a file that are read.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Selection {
    /// The positions of the fields in the file, ascending.
    pub(super) fields: Vec<usize>,
    /// For each entry of `fields`, the maximum number of elements that the field has in a valid row.
    pub(super) elements: Vec<usize>,
    /// For each wanted field, its position in `fields`.
    pub(super) positions: Vec<usize>,
}

impl Selection {
    /// Finds the wanted fields in a file whose fields have these names.
    ///
    /// # Errors
    /// [`TableError::NoField`] if the file lacks a field.
    pub(super) fn new(wanted: &[Wanted], names: &[&str]) -> Result<Self, TableError> {
        let find = |wanted: &Wanted| -> Result<usize, TableError> {
            let found = match &wanted.field {
                FieldSpec::Index(index) => Some(*index as usize).filter(|&index| index < names.len()),
                FieldSpec::Name(name) => names.iter().position(|other| other == name),
            };
            found.ok_or_else(|| {
                let listed = names.iter().take(LISTED_MAX).copied().collect::<Vec<_>>().join(", ");
                let there = listed.chars().flat_map(char::escape_debug).take(SHOWN_BYTES_MAX).collect();
                TableError::NoField { field: wanted.field.clone(), there }
            })
        };
        let found = wanted.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        let mut fields = found.clone();
        fields.sort_unstable();
        fields.dedup();
        let place = |field| fields.binary_search(field).expect("it was collected above");
        let positions: Vec<usize> = found.iter().map(place).collect();
        let mut elements = vec![1; fields.len()];
        for (wanted, &position) in wanted.iter().zip(&positions) {
            elements[position] = wanted.elements.max(elements[position]);
        }
        Ok(Self { fields, elements, positions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_name_or_position() {
        let wanted = |field: FieldSpec, elements| Wanted { field, elements };
        let all = [wanted("c".into(), 4), wanted(0.into(), 1), wanted(2.into(), 1), wanted("c".into(), 2)];
        let found = Selection::new(&all, &["a", "b", "c"]).unwrap();
        let expected = Selection { fields: vec![0, 2], elements: vec![1, 4], positions: vec![1, 0, 1, 1] };
        assert_eq!(found, expected);
        for field in [FieldSpec::from("d"), 3.into()] {
            let error = Selection::new(&[wanted(field, 1)], &["a", "b\n", "c"]).unwrap_err().to_string();
            assert!(error.contains("only a, b\\n, c"), "{error}");
        }
    }
}
