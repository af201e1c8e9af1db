//! How one tensor is repeated within another one in a broadcast. Element-wise passes and the gradients of
//! broadcasts need to know this. This module must not depend on kernels.

use pushpull_kernels::cpu::Extent;

/// Returns how a tensor of the shape `of` is repeated when it is broadcast to the shape `within`. Returns
/// `None` if the tensor is repeated along an inner axis.
pub(super) fn extent(of: &[usize], within: &[usize]) -> Option<Extent> {
    let (elements, all): (usize, usize) = (of.iter().product(), within.iter().product());
    let first = of.iter().position(|&extent| extent != 1).unwrap_or(of.len());
    if elements == all {
        Some(Extent::Whole)
    } else if elements == 1 {
        Some(Extent::Scalar)
    } else {
        within.ends_with(&of[first..]).then_some(Extent::Row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operand_is_whole_a_scalar_a_row_or_something_else() {
        for (of, within, expected) in [
            (&[2, 3][..], &[2, 3][..], Some(Extent::Whole)),
            (&[1, 6], &[6], Some(Extent::Whole)),
            (&[], &[2, 3], Some(Extent::Scalar)),
            (&[1, 1], &[2, 3], Some(Extent::Scalar)),
            (&[3], &[2, 3], Some(Extent::Row)),
            (&[1, 3], &[2, 3], Some(Extent::Row)),
            (&[4, 3], &[2, 4, 3], Some(Extent::Row)),
            (&[2, 1], &[2, 3], None),
            (&[2, 1, 3], &[2, 4, 3], None),
        ] {
            assert_eq!(extent(of, within), expected, "{of:?} within {within:?}");
        }
    }
}
