//! Generated points on a plane, with noise: the smallest data set from which a model can be trained.
//! Uses only `+ − × ÷`, because these give the same bits on every machine.

use pushpull_messages::input::ColumnSpec;
use pushpull_messages::tensor::TensorSpec;

use crate::dataset::{FEATURES, LABELS};
use crate::random::SplitMix64;
use crate::{HELD_BYTES_MAX, InMemory, InputError, Storage};

/// Separates the random streams of this module from all other streams of the same seed.
const STREAM: u64 = 0x4c49_4e45_4152; // "LINEAR"

/// The greatest value of a triangular distribution around 0 with standard deviation 1: √6.
const REACH: f32 = 2.449_489_8;

/// Returns the specs of the columns: `features` of shape `[weights]`, and `labels`, a scalar.
pub(crate) fn columns(weights: usize) -> [ColumnSpec; 2] {
    let column = |name: &str, example| ColumnSpec { name: name.to_owned(), example };
    [column(FEATURES, TensorSpec::f32([weights])), column(LABELS, TensorSpec::f32([]))]
}

/// Returns `examples` unchanged if a set may have `examples` points of `dimensions` dimensions each.
/// Otherwise returns [`InputError::Extent`].
pub(crate) fn check(examples: u64, dimensions: usize) -> Result<u64, InputError> {
    let max = (HELD_BYTES_MAX / 4 / (dimensions as u64 + 1)).min(u32::MAX.into());
    if dimensions > 0 && (1..=max).contains(&examples) {
        Ok(examples)
    } else {
        Err(InputError::Extent { examples, elements: dimensions, max })
    }
}

/// Draws `examples` points and their labels. Example `i` depends only on `seed`, `i`, `noise` and the plane.
pub(crate) fn draw(
    seed: u64,
    examples: u64,
    weights: &[f32],
    bias: f32,
    noise: f32,
) -> Result<InMemory, InputError> {
    let examples = check(examples, weights.len())?;
    let mut features = Vec::with_capacity(examples as usize * weights.len());
    let mut labels = Vec::with_capacity(examples as usize);
    for index in 0..examples {
        let mut random = SplitMix64::stream(&[STREAM, seed, index]);
        let mut label = bias;
        for weight in weights {
            let x = random.about_zero(REACH);
            label += weight * x;
            features.push(x);
        }
        labels.push(label + noise * random.about_zero(REACH));
    }
    let columns = columns(weights.len()).into_iter().zip([Storage::F32(features), Storage::F32(labels)]);
    InMemory::new(examples as usize, columns.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(set: &InMemory, name: &str) -> Vec<f32> {
        match set.storage(name) {
            Some(Storage::F32(values)) => values.clone(),
            other => panic!("{:?}", other.map(Storage::dtype)),
        }
    }

    #[test]
    fn labels_lie_on_the_plane_except_for_the_noise() {
        let weights = [2.0, -3.0, 0.5];
        for (noise, wide) in [(0.0, 1e-5), (0.1, 0.1)] {
            let set = draw(7, 4000, &weights, 1.5, noise).unwrap();
            assert_eq!(set.columns(), columns(3));
            let (x, y) = (values(&set, "features"), values(&set, "labels"));
            let off = x.chunks(3).zip(&y).map(|(x, y)| {
                f64::from(y - 1.5 - x.iter().zip(weights).map(|(x, weight)| x * weight).sum::<f32>())
            });
            let off: Vec<f64> = off.collect();
            let deviation = (off.iter().map(|off| off * off).sum::<f64>() / 4000.0).sqrt();
            assert!(deviation <= wide * 1.05 && deviation >= f64::from(noise) * 0.95, "{deviation}");
            let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / 12_000.0;
            let square = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / 12_000.0;
            assert!(mean.abs() < 0.04 && (square - 1.0).abs() < 0.05, "{mean} {square}");
        }
    }

    #[test]
    fn an_example_depends_only_on_seed_and_index() {
        let draw = |seed, examples| values(&draw(seed, examples, &[1.0, 2.0], 0.0, 0.3).unwrap(), "features");
        assert_eq!(draw(3, 10), draw(3, 50)[..20]);
        assert_ne!(draw(3, 10), draw(4, 10));
    }

    #[test]
    fn refuses_an_empty_set_and_one_too_large() {
        for (examples, dimensions) in [(0, 2), (1, 0), (u64::MAX, 2), (1 << 29, 2)] {
            assert!(matches!(check(examples, dimensions), Err(InputError::Extent { .. })), "{examples}");
        }
    }
}
