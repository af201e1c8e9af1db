//! A tensor with its elements: what a session feeds, fetches and keeps in a variable.

use super::{DType, Elements, RANK_MAX, Shape, TensorError, TensorSpec};

/// A tensor: a shape, and as many elements as it has places. Unlike the tensors of a graph, a value may be
/// empty.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    shape: Shape,
    elements: Elements,
}

impl Tensor {
    /// Makes a tensor of this shape.
    ///
    /// # Errors
    /// If the shape has more than 8 axes, or another number of places than there are elements.
    pub fn new(shape: impl Into<Shape>, elements: impl Into<Elements>) -> Result<Self, TensorError> {
        let (shape, elements) = (shape.into(), elements.into());
        if shape.rank() > RANK_MAX {
            return Err(TensorError::Rank { shape });
        }
        if shape.checked_elements() != Some(elements.len()) {
            return Err(TensorError::Count { shape, got: elements.len() });
        }
        Ok(Self { shape, elements })
    }

    /// Makes a tensor without axes.
    pub fn scalar<T>(element: T) -> Self
    where
        Vec<T>: Into<Elements>,
    {
        Self { shape: Shape::scalar(), elements: vec![element].into() }
    }

    /// Makes a tensor with one axis.
    pub fn vector<T>(elements: Vec<T>) -> Self
    where
        Vec<T>: Into<Elements>,
    {
        Self { shape: [elements.len()].into(), elements: elements.into() }
    }

    /// Makes a tensor of this spec whose elements are 0, `false` or the empty text. The caller must have
    /// bounded the number of elements.
    ///
    /// # Errors
    /// If the shape has more than 8 axes, or its number of elements overflows a `usize`.
    pub fn zeros(spec: &TensorSpec) -> Result<Self, TensorError> {
        let shape = spec.shape.clone();
        match shape.checked_elements() {
            _ if shape.rank() > RANK_MAX => Err(TensorError::Rank { shape }),
            Some(count) => Ok(Self { shape, elements: Elements::zeros(spec.dtype, count) }),
            None => Err(TensorError::Count { shape, got: 0 }),
        }
    }

    /// Returns the shape and the type of the elements.
    pub fn spec(&self) -> TensorSpec {
        TensorSpec { shape: self.shape.clone(), dtype: self.dtype() }
    }

    /// Returns the shape.
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the type of the elements.
    pub const fn dtype(&self) -> DType {
        self.elements.dtype()
    }

    /// Returns the elements.
    pub const fn elements(&self) -> &Elements {
        &self.elements
    }

    /// Returns the elements without the shape.
    pub fn into_elements(self) -> Elements {
        self.elements
    }
}

/// Defines a conversion from one element, from a vector and from an array, and an accessor of the elements.
macro_rules! of_type {
    ($($element:ty => $variant:ident $accessor:ident $what:literal)*) => {
        $(
            impl Tensor {
                #[doc = concat!("Returns the elements if they are ", $what, ".")]
                pub fn $accessor(&self) -> Option<&[$element]> {
                    match &self.elements {
                        Elements::$variant(elements) => Some(elements),
                        _ => None,
                    }
                }
            }

            impl From<$element> for Tensor {
                fn from(element: $element) -> Self {
                    Self::scalar(element)
                }
            }

            impl From<Vec<$element>> for Tensor {
                fn from(elements: Vec<$element>) -> Self {
                    Self::vector(elements)
                }
            }

            impl<const N: usize> From<[$element; N]> for Tensor {
                fn from(elements: [$element; N]) -> Self {
                    Self::vector(elements.into())
                }
            }
        )*
    };
}

of_type! {
    f32 => F32 f32s "32-bit floats"
    i32 => I32 i32s "32-bit integers"
    i64 => I64 i64s "64-bit integers"
    f64 => F64 f64s "64-bit floats"
    bool => Bool bools "truth values"
    u8 => U8 u8s "bytes"
    String => Text texts "texts"
}

impl From<&str> for Tensor {
    fn from(text: &str) -> Self {
        Self::scalar(text)
    }
}

impl From<Vec<&str>> for Tensor {
    fn from(texts: Vec<&str>) -> Self {
        Self::vector(texts)
    }
}

impl<const N: usize> From<[&str; N]> for Tensor {
    fn from(texts: [&str; N]) -> Self {
        Self::vector(texts.into())
    }
}
