//! Draws handwritten digits: picks a style, distorts it and renders it as a small grey image.
//! Uses only `+ − × ÷` and square roots, because other operations, such as a sine or a fused multiply-add, do
//! not give the same bits on every machine.

use pushpull_messages::tensor::Shape;

use super::glyphs::{GLYPHS, Point};
use super::ink::{PIXELS, SIDE, Sheet};
use crate::random::SplitMix64;
use crate::{InMemory, InputError};

/// Separates the random streams of this module from all other streams of the same seed.
const STREAM: u64 = 0x4449_4749_5453; // "DIGITS"

/// The maximum number of examples in one set; their pixels take 4 GiB.
const EXAMPLES_MAX: u64 = (4 << 30) / PIXELS as u64;

/// The height of a digit before it is scaled, in pixels.
const HEIGHT: f32 = 20.0;

/// The number of straight segments that are drawn between two points of a glyph.
const PIECES: u16 = 6;

/// A generator of handwritten digits: images of 28×28 pixels from 0 (paper) to 255 (ink), with labels from 0
/// to 9. All labels are equally likely.
#[derive(Clone, Copy, Debug)]
pub struct Digits;

impl Digits {
    /// The number of pixels along each side of an image.
    pub const SIDE: usize = SIDE;

    /// Draws `examples` digits. Example `i` depends only on `seed` and `i`, so a longer set begins with the
    /// examples of a shorter set with the same seed. A different seed gives different images.
    ///
    /// # Errors
    /// [`InputError::Extent`] if `examples` is 0, or if the pixels would take more than 4 GiB.
    pub fn draw(seed: u64, examples: u64) -> Result<InMemory, InputError> {
        let examples = Self::check(examples)?;
        let mut features = Vec::with_capacity(examples as usize * PIXELS);
        let mut labels = Vec::with_capacity(examples as usize);
        for index in 0..examples {
            let mut random = SplitMix64::stream(&[STREAM, seed, index]);
            let digit = random.below(10);
            labels.push(digit as i32);
            write(digit as usize, &mut random, &mut features);
        }
        InMemory::images(Shape::from([SIDE, SIDE]), features, labels, Some(10))
    }

    /// Returns `examples` unchanged if a set may have this number of examples, and [`InputError::Extent`]
    /// otherwise.
    pub(crate) fn check(examples: u64) -> Result<u64, InputError> {
        if (1..=EXAMPLES_MAX).contains(&examples) {
            Ok(examples)
        } else {
            Err(InputError::Extent { examples, elements: PIXELS, max: EXAMPLES_MAX })
        }
    }
}

/// The distortion of one digit: maps the coordinates of a glyph to pixels.
struct Bend {
    /// The first row of the matrix rotation × shear × scale; `down` is its second row.
    across: Point,
    down: Point,
    /// The centre of the digit, in pixels.
    centre: Point,
    /// How much the digit is bent: lean, sag and swell.
    bow: [f32; 3],
}

impl Bend {
    fn random(random: &mut SplitMix64) -> Self {
        // With t = tan(angle / 2), cosine and sine are (1 − t²) / (1 + t²) and 2t / (1 + t²). The angle is
        // at most ±14°.
        let t = random.about_zero(0.12);
        let (cosine, sine) = ((1.0 - t * t) / (1.0 + t * t), 2.0 * t / (1.0 + t * t));
        let shear = random.about_zero(0.35);
        let wide = HEIGHT * random.between(0.75, 1.1);
        let high = HEIGHT * random.between(0.8, 1.05);
        let middle = (SIDE - 1) as f32 / 2.0;
        Self {
            across: (cosine * wide, (cosine * shear - sine) * high),
            down: (sine * wide, (sine * shear + cosine) * high),
            centre: (middle + random.about_zero(2.2), middle + random.about_zero(2.2)),
            bow: [random.about_zero(0.4), random.about_zero(0.2), random.about_zero(0.3)],
        }
    }

    fn apply(&self, (x, y): Point) -> Point {
        let (x, y) = (x - 0.5, y - 0.5);
        let [lean, sag, swell] = self.bow;
        let (x, y) = (x + lean * y * y + swell * x * y, y + sag * x * x);
        (
            self.centre.0 + self.across.0 * x + self.across.1 * y,
            self.centre.1 + self.down.0 * x + self.down.1 * y,
        )
    }
}

/// Appends the pixels of one image to `pixels`.
fn write(digit: usize, random: &mut SplitMix64, pixels: &mut Vec<u8>) {
    let glyphs = GLYPHS[digit];
    let glyph = glyphs[random.below(glyphs.len() as u32) as usize];
    let bend = Bend::random(random);
    let unsteady = random.between(0.02, 0.08);
    let radius = random.between(0.7, 1.8);
    let fade = random.between(0.4, 0.8);
    let pressure = random.about_zero(0.35);

    let mut sheet = Sheet::blank();
    let mut points: Vec<Point> = Vec::new();
    for stroke in glyph {
        points.clear();
        let mut last = None;
        for &(x, y) in *stroke {
            // A corner is a point that occurs twice. Both occurrences must be moved by the same distance.
            let point = match last {
                Some((same, bent)) if same == (x, y) => bent,
                _ => bend.apply((x + random.about_zero(unsteady), y + random.about_zero(unsteady))),
            };
            last = Some(((x, y), point));
            points.push(point);
        }
        trace(&points, radius, pressure, &mut sheet);
    }

    let ink = random.between(200.0, 255.0);
    let mut noise = 0;
    pixels.extend(sheet.coverage(fade).enumerate().map(|(pixel, coverage)| {
        // One random number gives the noise of eight pixels. Each pixel gets one byte, which is reduced to
        // −8 to 7.
        if pixel % 8 == 0 {
            noise = random.bits();
        }
        let grain = ((noise >> (pixel % 8 * 8)) & 15) as f32 - 8.0;
        // The conversion saturates at 0 and 255.
        (coverage * ink + grain) as u8
    }));
}

/// Draws a smooth curve through the points, as in Catmull and Rom, "A class of local interpolating splines",
/// 1974.
fn trace(points: &[Point], radius: f32, pressure: f32, sheet: &mut Sheet) {
    let spans = points.len() - 1;
    for (index, span) in points.windows(2).enumerate() {
        let (begin, end) = (span[0], span[1]);
        if begin == end {
            continue;
        }
        let before = points[index.saturating_sub(1)];
        let after = points[(index + 2).min(spans)];
        let mut from = begin;
        for piece in 1..=PIECES {
            let t = f32::from(piece) / f32::from(PIECES);
            let on = |p0: f32, p1: f32, p2: f32, p3: f32| {
                let (a, b) = (2.0 * p0 - 5.0 * p1 + 4.0 * p2 - p3, 3.0 * (p1 - p2) + p3 - p0);
                p1 + 0.5 * t * ((p2 - p0) + t * (a + t * b))
            };
            let to = (on(before.0, begin.0, end.0, after.0), on(before.1, begin.1, end.1, after.1));
            let way = (index as f32 + t) / spans as f32 - 0.5;
            sheet.line(from, to, radius * (1.0 + pressure * way));
            from = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn an_image_depends_only_on_seed_and_index() {
        let (short, long) = (Digits::draw(3, 20).unwrap(), Digits::draw(3, 50).unwrap());
        assert_eq!(short.labels(), &long.labels()[..20]);
        assert!((0..20).all(|i| short.pixels(i) == long.pixels(i)));
    }

    /// Compares a checksum (FNV-1a) of the images with a constant, because the images must not depend on the
    /// machine or the build profile.
    #[test]
    fn images_are_the_same_on_every_machine() {
        let set = Digits::draw(2026, 200).unwrap();
        let hash = (0..200).flat_map(|i| set.pixels(i)).fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        assert_eq!(hash, 16_851_226_559_833_410_157);
    }

    #[test]
    fn images_are_unique_within_and_across_sets() {
        let sets = [0, 1, 2, u64::MAX].map(|seed| Digits::draw(seed, 1500).unwrap());
        let images: BTreeSet<&[u8]> = sets.iter().flat_map(|set| (0..1500).map(|i| set.pixels(i))).collect();
        assert_eq!(images.len(), 4 * 1500);
    }

    #[test]
    fn classes_are_evenly_mixed() {
        let set = Digits::draw(8, 5000).unwrap();
        for class in 0..10 {
            let count = set.labels().iter().filter(|&&label| label == class).count();
            // 500 is expected, with a standard deviation of 21.
            assert!((400..600).contains(&count), "{count} of class {class}");
        }
        // The labels come in random order, so equal labels follow each other in one case of ten.
        let repeats = set.labels().windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!((400..600).contains(&repeats), "{repeats} labels follow themselves");
    }

    #[test]
    fn digits_are_on_the_sheet_with_enough_ink() {
        let set = Digits::draw(4, 2000).unwrap();
        let mut total = 0;
        for example in 0..2000 {
            let pixels = set.pixels(example);
            let ink: u32 = pixels.iter().map(|&pixel| u32::from(pixel)).sum();
            let border: u32 = (0..SIDE)
                .flat_map(|i| [i, (SIDE - 1) * SIDE + i, i * SIDE, i * SIDE + SIDE - 1])
                .map(|at| u32::from(pixels[at]))
                .sum();
            assert!(ink > 255 * 20, "example {example} is nearly empty");
            assert!(border * 5 < ink, "example {example} is cut off");
            assert!(pixels.iter().any(|&pixel| pixel > 180), "example {example} is pale");
            total += u64::from(ink);
        }
        // MNIST's mean pixel is 0.13.
        let mean = total as f64 / 255.0 / (2000 * PIXELS) as f64;
        assert!((0.09..0.19).contains(&mean), "mean pixel {mean}");
    }

    #[test]
    fn refuses_an_empty_set_and_one_too_large() {
        assert!(matches!(Digits::draw(0, 0), Err(InputError::Extent { examples: 0, .. })));
        assert!(matches!(
            Digits::draw(0, EXAMPLES_MAX + 1),
            Err(InputError::Extent { max: EXAMPLES_MAX, .. })
        ));
    }
}
