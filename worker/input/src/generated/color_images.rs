//! Generated images: five shapes, each in a warm or a cold colour, on a coloured background.
//! Uses only `+ − × ÷` and square roots, because other operations, such as a sine or a fused multiply-add, do
//! not give the same bits on every machine.

use pushpull_messages::input::ColumnSpec;
use pushpull_messages::tensor::Shape;

use crate::random::SplitMix64;
use crate::{InMemory, InputError};

/// A constant that separates the random streams of this module from all other streams of the same seed.
const STREAM: u64 = 0x434f_4c4f_5253; // "COLORS"

const SIDE: usize = 32;
const CHANNELS: usize = 3;
const ELEMENTS: usize = SIDE * SIDE * CHANNELS;
const CLASSES: u32 = 10;

/// The maximum number of examples in one set; their pixels take 4 GiB.
const EXAMPLES_MAX: u64 = (4 << 30) / ELEMENTS as u64;

/// Returns the specs of the columns: `features` of shape `[32, 32, 3]`, and `labels`.
pub(crate) fn columns() -> Vec<ColumnSpec> {
    InMemory::image_columns(Shape::from([SIDE, SIDE, CHANNELS])).into()
}

/// Returns `examples` unchanged if a set may have this number of examples, and [`InputError::Extent`]
/// otherwise.
pub(crate) fn check(examples: u64) -> Result<u64, InputError> {
    if (1..=EXAMPLES_MAX).contains(&examples) {
        Ok(examples)
    } else {
        Err(InputError::Extent { examples, elements: ELEMENTS, max: EXAMPLES_MAX })
    }
}

/// Draws `examples` images. Example `i` depends only on `seed` and `i`.
pub(crate) fn draw(seed: u64, examples: u64) -> Result<InMemory, InputError> {
    let examples = check(examples)?;
    let mut pixels = Vec::with_capacity(examples as usize * ELEMENTS);
    let mut labels = Vec::with_capacity(examples as usize);
    for index in 0..examples {
        let mut random = SplitMix64::stream(&[STREAM, seed, index]);
        let class = random.below(CLASSES);
        labels.push(class as i32);
        paint(class, &mut random, &mut pixels);
    }
    InMemory::images(Shape::from([SIDE, SIDE, CHANNELS]), pixels, labels, Some(CLASSES))
}

/// Appends the pixels of one image to `pixels`.
fn paint(class: u32, random: &mut SplitMix64, pixels: &mut Vec<u8>) {
    let (shape, cold) = (class / 2, class % 2 == 1);
    let mut ink = [random.between(170.0, 250.0), random.between(40.0, 170.0), random.between(20.0, 90.0)];
    if cold {
        ink.reverse();
    }
    let ground = [0; CHANNELS].map(|_: i32| random.between(30.0, 150.0));
    let radius = random.between(6.0, 11.0);
    let middle = (SIDE - 1) as f32 / 2.0;
    let centre = (middle + random.about_zero(5.0), middle + random.about_zero(5.0));
    // With t = tan(angle / 2), cosine and sine are (1 − t²) / (1 + t²) and 2t / (1 + t²). The angle is at
    // most ±23°.
    let t = random.about_zero(0.2);
    let (cosine, sine) = ((1.0 - t * t) / (1.0 + t * t), 2.0 * t / (1.0 + t * t));
    for row in 0..SIDE {
        for column in 0..SIDE {
            let (x, y) = (column as f32 - centre.0, row as f32 - centre.1);
            let (x, y) = (cosine * x - sine * y, sine * x + cosine * y);
            let coverage = (0.5 - outside(shape, x, y, radius)).clamp(0.0, 1.0);
            let mut noise = random.bits();
            for channel in 0..CHANNELS {
                // Between −32 and 31.
                let grain = (noise & 63) as f32 - 32.0;
                noise >>= 6;
                // The conversion saturates at 0 and 255.
                pixels.push((ground[channel] + (ink[channel] - ground[channel]) * coverage + grain) as u8);
            }
        }
    }
}

/// Returns the approximate distance of a point from a shape centred at 0; negative if the point lies inside.
fn outside(shape: u32, x: f32, y: f32, radius: f32) -> f32 {
    let (across, down) = (x.abs(), y.abs());
    let away = (x * x + y * y).sqrt();
    match shape {
        // A disc, a square, a triangle, a ring and a cross.
        0 => away - radius,
        1 => across.max(down) - 0.85 * radius,
        2 => (y - 0.7 * radius).max(0.9 * across - 0.44 * y - 0.5 * radius),
        3 => (away - 0.75 * radius).abs() - 0.25 * radius,
        _ => (across.min(down) - 0.3 * radius).max(across.max(down) - radius),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_depends_only_on_seed_and_index() {
        let (short, long) = (draw(3, 20).unwrap(), draw(3, 50).unwrap());
        assert_eq!(short.labels(), &long.labels()[..20]);
        assert!((0..20).all(|i| short.pixels(i) == long.pixels(i)));
        assert_ne!(draw(4, 20).unwrap().pixels(0), short.pixels(0));
        assert_eq!(short.columns(), columns());
    }

    /// Compares a checksum (FNV-1a) of the images with a constant, because the images must not depend on the
    /// machine or the build profile.
    #[test]
    fn images_are_the_same_on_every_machine() {
        let set = draw(2026, 50).unwrap();
        let hash = (0..50).flat_map(|i| set.pixels(i)).fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        assert_eq!(hash, 4_453_484_312_432_994_969);
    }

    #[test]
    fn classes_are_evenly_mixed() {
        let set = draw(8, 2000).unwrap();
        for class in 0..10 {
            let count = set.labels().iter().filter(|&&label| label == class).count();
            // 200 is expected, with a standard deviation of 13.
            assert!((140..260).contains(&count), "{count} of class {class}");
        }
    }

    /// Assigns each test image to the class whose mean training image is nearest. The assigned class must be
    /// right more than twice as often as a guess.
    #[test]
    fn classes_can_be_told_apart() {
        let (train, test) = (draw(1, 2000).unwrap(), draw(2, 500).unwrap());
        let mut means = vec![vec![0.0f64; ELEMENTS]; 10];
        for example in 0..2000 {
            let class = train.labels()[example] as usize;
            for (mean, &pixel) in means[class].iter_mut().zip(train.pixels(example as u32)) {
                *mean += f64::from(pixel) / 200.0;
            }
        }
        let right = (0..500u32).filter(|&example| {
            let distance = |mean: &[f64]| {
                let pixels = test.pixels(example).iter();
                pixels.zip(mean).map(|(&pixel, mean)| (f64::from(pixel) - mean).powi(2)).sum::<f64>()
            };
            let best = (0..10).min_by(|&a, &b| distance(&means[a]).total_cmp(&distance(&means[b])));
            best == Some(test.labels()[example as usize] as usize)
        });
        let right = right.count();
        assert!(right > 100, "{right} of 500; chance gives 50");
    }

    #[test]
    fn refuses_an_empty_set_and_one_too_large() {
        assert!(matches!(draw(0, 0), Err(InputError::Extent { examples: 0, .. })));
        assert!(matches!(draw(0, EXAMPLES_MAX + 1), Err(InputError::Extent { max: EXAMPLES_MAX, .. })));
    }
}
