//! Examples in memory, pixels kept as the bytes that they came as.
//! Knows neither files nor the order in which anyone wants them.

use std::fmt;

use messages::tensor::Shape;

use super::InputError;

/// Examples of one shape, each with a label. Never empty.
#[derive(Clone, PartialEq, Eq)]
pub struct Dataset {
    feature_shape: Shape,
    elements: usize,
    features: Vec<u8>,
    labels: Vec<i32>,
    classes: Option<u32>,
}

impl Dataset {
    /// Of `labels.len()` examples, whose features lie one example after the other, each row-major of `feature_shape`.
    ///
    /// # Errors
    /// [`InputError::Extent`] for no example, no element, or more examples than a `u32` counts;
    /// [`InputError::Features`] where the two do not fit together; [`InputError::Label`] for a label below 0, or not
    /// below `classes` where that is known.
    pub fn new(
        feature_shape: Shape,
        features: Vec<u8>,
        labels: Vec<i32>,
        classes: Option<u32>,
    ) -> Result<Self, InputError> {
        let elements = feature_shape.checked_elements().unwrap_or(0);
        if elements == 0 || labels.is_empty() || u32::try_from(labels.len()).is_err() {
            return Err(InputError::Extent { examples: labels.len() as u64, elements, max: u32::MAX.into() });
        }
        if labels.len().checked_mul(elements) != Some(features.len()) {
            return Err(InputError::Features { features: features.len(), labels: labels.len(), elements });
        }
        let max = classes.map_or(i32::MAX, |count| i32::try_from(i64::from(count) - 1).unwrap_or(i32::MAX));
        if let Some(example) = labels.iter().position(|&label| !(0..=max).contains(&label)) {
            return Err(InputError::Label { example, label: labels[example], max });
        }
        Ok(Self { feature_shape, elements, features, labels, classes })
    }

    /// How many examples there are; at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a data set is never empty")]
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// The shape of one example's features, such as `[28, 28]`: without the batch.
    pub fn feature_shape(&self) -> &Shape {
        &self.feature_shape
    }

    /// How many elements one example's features have.
    pub fn feature_elements(&self) -> usize {
        self.elements
    }

    /// How many classes there are, where the source says so; an IDX file does not.
    pub fn classes(&self) -> Option<u32> {
        self.classes
    }

    /// The largest label in the set: what a model's number of outputs must lie above.
    pub fn label_max(&self) -> i32 {
        self.labels.iter().copied().max().expect("a data set is never empty")
    }

    /// All labels, in order.
    pub fn labels(&self) -> &[i32] {
        &self.labels
    }

    /// The features of one example, unscaled.
    ///
    /// # Panics
    /// Where there is no such example.
    pub fn pixels(&self, example: u32) -> &[u8] {
        let begin = example as usize * self.elements;
        &self.features[begin..begin + self.elements]
    }

    /// Writes the features of these examples, scaled from 0..255 to 0..1, and their labels, in the order asked for.
    ///
    /// `features` is row-major of shape `[examples.len(), ..feature_shape]`.
    ///
    /// # Panics
    /// Where there is no such example or a destination has another length.
    pub fn fill(&self, examples: &[u32], features: &mut [f32], labels: &mut [i32]) {
        assert_eq!(features.len(), examples.len() * self.elements, "features for another number of examples");
        assert_eq!(labels.len(), examples.len(), "labels for another number of examples");
        let rows = features.chunks_exact_mut(self.elements).zip(labels);
        for (&example, (row, label)) in examples.iter().zip(rows) {
            for (value, &pixel) in row.iter_mut().zip(self.pixels(example)) {
                *value = f32::from(pixel) / 255.0;
            }
            *label = self.labels[example as usize];
        }
    }
}

/// Says what the set looks like instead of printing millions of pixels.
impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dataset")
            .field("examples", &self.len())
            .field("feature_shape", &self.feature_shape)
            .field("classes", &self.classes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three_of_two() -> Dataset {
        Dataset::new(Shape::from([2, 1]), vec![0, 255, 51, 102, 153, 204], vec![4, 0, 9], Some(10)).unwrap()
    }

    #[test]
    fn fills_scaled_features_in_the_order_asked_for() {
        let set = three_of_two();
        let (mut features, mut labels) = ([7.0; 6], [7; 3]);
        set.fill(&[2, 0, 2], &mut features, &mut labels);
        assert_eq!(features, [0.6, 0.8, 0.0, 1.0, 0.6, 0.8]);
        assert_eq!(labels, [9, 4, 9]);
        assert_eq!((set.len(), set.label_max(), set.classes()), (3, 9, Some(10)));
        assert_eq!(set.feature_shape(), &Shape::from([2, 1]));
    }

    #[test]
    #[should_panic(expected = "range end index 8 out of range")]
    fn an_example_beyond_the_end_is_our_bug() {
        three_of_two().fill(&[3], &mut [0.0; 2], &mut [0]);
    }

    #[test]
    fn refuses_what_does_not_fit_together() {
        let new = |shape: &[usize], features: usize, labels: &[i32], classes| {
            Dataset::new(Shape(shape.to_vec()), vec![0; features], labels.to_vec(), classes).unwrap_err()
        };
        assert!(matches!(new(&[2], 0, &[], None), InputError::Extent { examples: 0, .. }));
        assert!(matches!(new(&[2, 0], 0, &[1], None), InputError::Extent { elements: 0, .. }));
        assert!(matches!(new(&[usize::MAX, 2], 4, &[1], None), InputError::Extent { elements: 0, .. }));
        assert!(matches!(
            new(&[2], 3, &[1], None),
            InputError::Features { features: 3, labels: 1, elements: 2 }
        ));
        assert!(matches!(new(&[1], 2, &[0, -1], None), InputError::Label { example: 1, label: -1, .. }));
        assert!(matches!(
            new(&[1], 2, &[9, 10], Some(10)),
            InputError::Label { example: 1, label: 10, max: 9 }
        ));
        assert!(matches!(new(&[1], 1, &[0], Some(0)), InputError::Label { example: 0, label: 0, max: -1 }));
    }

    #[test]
    fn debug_is_short() {
        assert!(format!("{:?}", three_of_two()).len() < 100);
    }
}
