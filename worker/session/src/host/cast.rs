//! Conversions between types. A float becomes the nearest integer towards 0, limited to the range of the
//! type, and NaN becomes 0; an integer keeps the bits that fit; every number but 0 is true.

use pushpull_messages::tensor::{DType, Elements, Tensor};

use super::arithmetic::tensor;

pub(super) fn cast(x: &Tensor, to: DType) -> Tensor {
    macro_rules! from {
        ($elements:ident, $truth:expr) => {
            match to {
                DType::F32 => Elements::F32($elements.iter().map(|&x| x as f32).collect()),
                DType::I32 => Elements::I32($elements.iter().map(|&x| x as i32).collect()),
                DType::I64 => Elements::I64($elements.iter().map(|&x| x as i64).collect()),
                DType::F64 => Elements::F64($elements.iter().map(|&x| x as f64).collect()),
                DType::U8 => Elements::U8($elements.iter().map(|&x| x as u8).collect()),
                DType::Bool => Elements::Bool($elements.iter().map($truth).collect()),
                DType::Text => unreachable!("no cast to text, by inference"),
            }
        };
    }
    let elements = match x.elements() {
        Elements::F32(x) => from!(x, |&x| x != 0.0),
        Elements::I32(x) => from!(x, |&x| x != 0),
        Elements::I64(x) => from!(x, |&x| x != 0),
        Elements::F64(x) => from!(x, |&x| x != 0.0),
        Elements::U8(x) => from!(x, |&x| x != 0),
        Elements::Bool(x) => {
            let x: Vec<u8> = x.iter().map(|&x| u8::from(x)).collect();
            from!(x, |&x| x != 0)
        }
        Elements::Text(_) => unreachable!("no cast of text, by inference"),
    };
    tensor(x.shape().clone(), elements)
}
