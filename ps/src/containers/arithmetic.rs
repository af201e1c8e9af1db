//! Adds to tensors of any type, and makes initial values.

use pushpull_messages::tensor::{DType, Elements, Tensor};
use pushpull_messages::variable::{InitializerSpec, VariableSpec};

use crate::shard::fill_initial;

/// The seed of the initial values of sessions. A variable with the same name and initializer begins with the
/// same values in each session.
const SEED: u64 = 0;

/// Returns the initial value of a variable.
pub(super) fn initial(spec: &VariableSpec) -> Tensor {
    let count = spec.shape.elements();
    let constant = match spec.initializer {
        InitializerSpec::Constant { value } => value,
        _ => 0.0,
    };
    let elements = match spec.dtype {
        DType::F32 => {
            let mut values = vec![0.0; count];
            fill_initial(&mut values, spec, 0, SEED);
            Elements::F32(values)
        }
        DType::I32 => Elements::I32(vec![constant as i32; count]),
        DType::I64 => Elements::I64(vec![constant as i64; count]),
        DType::F64 => Elements::F64(vec![f64::from(constant); count]),
        DType::U8 => Elements::U8(vec![constant as u8; count]),
        DType::Bool => Elements::Bool(vec![constant != 0.0; count]),
        DType::Text => Elements::Text(vec![String::new(); count]),
    };
    Tensor::new(spec.shape.clone(), elements).expect("as many elements as the shape has")
}

/// Adds `terms` to `sum`, or subtracts them. Integers wrap around. Truth values and texts are unchanged; the
/// check of a graph refuses to add them.
pub(super) fn add(sum: Tensor, terms: &Tensor, subtract: bool) -> Tensor {
    let shape = sum.shape().clone();
    let mut sum = sum.into_elements();
    match (&mut sum, terms.elements()) {
        (Elements::F32(sum), Elements::F32(terms)) => {
            each(sum, terms, |a, b| if subtract { a - b } else { a + b });
        }
        (Elements::F64(sum), Elements::F64(terms)) => {
            each(sum, terms, |a, b| if subtract { a - b } else { a + b });
        }
        (Elements::I32(sum), Elements::I32(terms)) => {
            each(sum, terms, |a, b| if subtract { a.wrapping_sub(b) } else { a.wrapping_add(b) });
        }
        (Elements::I64(sum), Elements::I64(terms)) => {
            each(sum, terms, |a, b| if subtract { a.wrapping_sub(b) } else { a.wrapping_add(b) });
        }
        (Elements::U8(sum), Elements::U8(terms)) => {
            each(sum, terms, |a, b| if subtract { a.wrapping_sub(b) } else { a.wrapping_add(b) });
        }
        _ => {}
    }
    Tensor::new(shape, sum).expect("the shape is unchanged")
}

fn each<T: Copy>(sum: &mut [T], terms: &[T], f: impl Fn(T, T) -> T) {
    for (sum, &term) in sum.iter_mut().zip(terms) {
        *sum = f(*sum, term);
    }
}
