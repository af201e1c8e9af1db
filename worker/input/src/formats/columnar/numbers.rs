//! Converts Arrow arrays of numbers of any type to floats, integers or words. This module must not depend on
//! files or columns.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrowPrimitiveType};
use arrow_schema::DataType;

/// Returns true if the type is that of integers or booleans.
pub(super) const fn is_integer(kind: &DataType) -> bool {
    matches!(
        kind,
        DataType::Boolean
            | DataType::Int8
            | DataType::Int16
            | DataType::Int32
            | DataType::Int64
            | DataType::UInt8
            | DataType::UInt16
            | DataType::UInt32
            | DataType::UInt64
    )
}

/// Returns true if the type is that of integers, booleans or floats.
pub(super) const fn is_number(kind: &DataType) -> bool {
    is_integer(kind) || matches!(kind, DataType::Float16 | DataType::Float32 | DataType::Float64)
}

/// Returns each element as the nearest `f32`. The value of a null is arbitrary.
///
/// # Panics
/// If the elements are not numbers.
pub(super) fn floats(array: &dyn Array) -> Vec<f32> {
    match array.data_type() {
        DataType::Float16 => each::<Float16Type, _>(array, |value| value.to_f32()),
        DataType::Float32 => array.as_primitive::<Float32Type>().values().to_vec(),
        DataType::Float64 => each::<Float64Type, _>(array, |value| value as f32),
        DataType::UInt64 => each::<UInt64Type, _>(array, |value| value as f32),
        _ => integers(array).into_iter().map(|value| value as f32).collect(),
    }
}

/// Returns each element as a word: `true` or `false` for a boolean, and decimal digits for an integer. The
/// value of a null is arbitrary.
///
/// # Panics
/// If the elements are neither integers nor booleans.
pub(super) fn words(array: &dyn Array) -> Vec<String> {
    match array.data_type() {
        DataType::Boolean => array.as_boolean().values().iter().map(|value| value.to_string()).collect(),
        DataType::UInt64 => each::<UInt64Type, _>(array, |value| value.to_string()),
        _ => integers(array).iter().map(i64::to_string).collect(),
    }
}

/// Returns the elements as `i64`; false is 0, and true is 1. A `u64` above the range of an `i64` becomes the
/// largest `i64`. The value of a null is arbitrary.
///
/// # Panics
/// If the elements are neither integers nor booleans.
pub(super) fn integers(array: &dyn Array) -> Vec<i64> {
    match array.data_type() {
        DataType::Boolean => array.as_boolean().values().iter().map(i64::from).collect(),
        DataType::Int8 => each::<Int8Type, _>(array, i64::from),
        DataType::Int16 => each::<Int16Type, _>(array, i64::from),
        DataType::Int32 => each::<Int32Type, _>(array, i64::from),
        DataType::Int64 => array.as_primitive::<Int64Type>().values().to_vec(),
        DataType::UInt8 => each::<UInt8Type, _>(array, i64::from),
        DataType::UInt16 => each::<UInt16Type, _>(array, i64::from),
        DataType::UInt32 => each::<UInt32Type, _>(array, i64::from),
        DataType::UInt64 => each::<UInt64Type, _>(array, |value| i64::try_from(value).unwrap_or(i64::MAX)),
        other => unreachable!("{other} was refused when the file was opened"),
    }
}

fn each<T: ArrowPrimitiveType, V>(array: &dyn Array, convert: impl Fn(T::Native) -> V) -> Vec<V> {
    array.as_primitive::<T>().values().iter().map(|&value| convert(value)).collect()
}
