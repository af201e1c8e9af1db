//! Positions in a tensor, visited one by one. This module must not depend on operations.

/// An iterator over all positions in a shape, in row-major order.
pub(super) struct Index<'a> {
    shape: &'a [usize],
    next: Option<Vec<usize>>,
}

impl<'a> Index<'a> {
    pub fn all(shape: &'a [usize]) -> Self {
        Self { shape, next: (!shape.contains(&0)).then(|| vec![0; shape.len()]) }
    }

    /// Returns the offset, in elements, of the position `at` in a tensor of this shape.
    pub fn flat(shape: &[usize], at: &[usize]) -> usize {
        assert_eq!(shape.len(), at.len());
        shape.iter().zip(at).fold(0, |flat, (extent, at)| flat * extent + at)
    }
}

impl Iterator for Index<'_> {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        let at = self.next.take()?;
        let mut after = at.clone();
        for axis in (0..self.shape.len()).rev() {
            after[axis] += 1;
            if after[axis] < self.shape[axis] {
                self.next = Some(after);
                break;
            }
            after[axis] = 0;
        }
        Some(at)
    }
}

/// Broadcasts an operand of the shape `operand` by NumPy's rule. Returns the offset of the operand's element
/// from which the element of the result at the position `at` is computed.
pub(super) fn broadcast(operand: &[usize], at: &[usize]) -> usize {
    let own = &at[at.len() - operand.len()..];
    operand.iter().zip(own).fold(0, |flat, (&extent, &at)| flat * extent + if extent == 1 { 0 } else { at })
}
