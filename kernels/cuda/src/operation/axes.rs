//! Where the elements of a tensor lie in another one, as expressions of kernels. This module must not depend
//! on what is done with the elements.

/// An axis of a tensor: its size, and how far apart neighbours on it lie in the other tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Axis {
    pub size: usize,
    pub stride: usize,
}

/// Returns the expression of where the element `index` of a tensor lies in the other one. `axes` are those of
/// the tensor, the last one first; `index` counts its elements, row by row, and is an expression of its own.
///
/// Required property: for all indices, the expression has the value of the sum of coordinate · stride.
pub(super) fn offset(index: &str, axes: impl IntoIterator<Item = Axis>) -> String {
    // Each axis with the number of elements between neighbours on it, in the tensor itself.
    let mut merged: Vec<(usize, Axis)> = Vec::new();
    let mut inner = 1;
    for axis in axes {
        let within = inner;
        inner *= axis.size;
        match merged.last_mut() {
            _ if axis.size == 1 => {}
            Some((_, last)) if axis.stride == last.stride * last.size => last.size *= axis.size,
            _ => merged.push((within, axis)),
        }
    }
    let term = |&(within, Axis { size, stride }): &(usize, Axis)| {
        let mut term = index.to_owned();
        if within > 1 {
            term = format!("{term} / {within}");
        }
        if within * size < inner {
            term = format!("{term} % {size}");
        }
        if stride > 1 {
            term = format!("{term} * {stride}");
        }
        term
    };
    let terms: Vec<String> = merged.iter().filter(|(_, axis)| axis.stride > 0).map(term).collect();
    if terms.is_empty() { "0".to_owned() } else { terms.join(" + ") }
}

/// Returns the axes of a tensor of this shape, the last one first, within itself.
pub(super) fn dense(shape: &[usize]) -> Vec<Axis> {
    let mut stride = 1;
    let axis = |&size: &usize| {
        let own = stride;
        stride *= size;
        Axis { size, stride: own }
    };
    shape.iter().rev().map(axis).collect()
}

/// Returns the type of indices of a tensor with this number of elements. Numbers of 4 bytes are divided
/// faster.
pub(super) const fn index_type(elements: usize) -> &'static str {
    if elements < 1 << 31 { "unsigned" } else { "Count" }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Computes an expression from left to right, as it has only `+` below `/`, `%` and `*`.
    fn value(expression: &str, index: usize) -> usize {
        let term = |term: &str| {
            let mut words = term.split(' ');
            let number = |word: &str| if word == "i" { index } else { word.parse().unwrap() };
            let mut value = number(words.next().unwrap());
            while let (Some(sign), Some(word)) = (words.next(), words.next()) {
                match sign {
                    "/" => value /= number(word),
                    "%" => value %= number(word),
                    _ => value *= number(word),
                }
            }
            value
        };
        expression.split(" + ").map(term).sum()
    }

    proptest! {
        #[test]
        fn an_expression_finds_every_element(sizes in prop::collection::vec((1usize..5, 0usize..30), 0..6)) {
            let axes: Vec<Axis> = sizes.iter().map(|&(size, stride)| Axis { size, stride }).collect();
            let expression = offset("i", axes.iter().copied());
            for index in 0..axes.iter().map(|axis| axis.size).product() {
                let (mut rest, mut expected) = (index, 0);
                for axis in &axes {
                    expected += rest % axis.size * axis.stride;
                    rest /= axis.size;
                }
                prop_assert_eq!(value(&expression, index), expected, "{}", expression);
            }
        }
    }

    #[test]
    fn axes_that_lie_side_by_side_need_no_division() {
        assert_eq!(offset("i", dense(&[3, 4, 5])), "i");
        assert_eq!(offset("i", []), "0");
        let repeated = |size| Axis { size, stride: 0 };
        assert_eq!(offset("i", [repeated(7), Axis { size: 3, stride: 1 }]), "i / 7");
        assert_eq!(offset("i", [Axis { size: 7, stride: 1 }, repeated(3)]), "i % 7");
    }
}
