//! A small sheet on which strokes are drawn. Edges are anti-aliased: the ink of a pixel depends on its
//! distance from the stroke. This module must not depend on digits or randomness.

/// The number of pixels along each edge of a sheet.
pub(super) const SIDE: usize = 28;

/// The number of pixels of a sheet.
pub(super) const PIXELS: usize = SIDE * SIDE;

/// The largest value of the parameter `fade` of [`Sheet::coverage`], in pixels.
const FADE_MAX: f32 = 1.0;

/// A sheet that stores, for each pixel, the distance of its centre from the edge of the nearest stroke. The
/// distance is negative inside the stroke.
pub(super) struct Sheet {
    distance: [f32; PIXELS],
}

impl Sheet {
    /// Returns a sheet without ink.
    pub(super) fn blank() -> Self {
        Self { distance: [f32::MAX; PIXELS] }
    }

    /// Draws a straight line of width 2 × `radius`, in pixels. The centres of pixels have integer
    /// coordinates.
    pub(super) fn line(&mut self, from: (f32, f32), to: (f32, f32), radius: f32) {
        let reach = radius + FADE_MAX;
        let (columns, rows) = (span(from.0, to.0, reach), span(from.1, to.1, reach));
        let (along_x, along_y) = (to.0 - from.0, to.1 - from.1);
        let length_squared = along_x * along_x + along_y * along_y;
        // If the line has no length, its start is the nearest point.
        let scale = if length_squared > 0.0 { 1.0 / length_squared } else { 0.0 };
        for row in rows {
            for column in columns.clone() {
                let (x, y) = (column as f32 - from.0, row as f32 - from.1);
                let part = ((x * along_x + y * along_y) * scale).clamp(0.0, 1.0);
                let (away_x, away_y) = (x - part * along_x, y - part * along_y);
                let distance = (away_x * away_x + away_y * away_y).sqrt() - radius;
                let nearest = &mut self.distance[row * SIDE + column];
                *nearest = nearest.min(distance);
            }
        }
    }

    /// Returns the ink of each pixel, from 0 to 1. The ink is 1 for a pixel more than `fade` pixels inside a
    /// stroke, and 0 for a pixel more than `fade` pixels outside. Between these distances, the ink falls
    /// gradually.
    ///
    /// # Panics
    /// If `fade` is not above 0, or if it is above `FADE_MAX`.
    pub(super) fn coverage(&self, fade: f32) -> impl Iterator<Item = f32> + '_ {
        assert!(fade > 0.0 && fade <= FADE_MAX, "expected a fade above 0 and at most {FADE_MAX}");
        let scale = 0.5 / fade;
        self.distance.iter().map(move |&distance| (0.5 - distance * scale).clamp(0.0, 1.0))
    }
}

/// Returns the pixel coordinates along one axis from `one` to `other`, extended by `reach` at both ends.
fn span(one: f32, other: f32, reach: f32) -> std::ops::Range<usize> {
    let last = SIDE as f32;
    let begin = (one.min(other) - reach).ceil().clamp(0.0, last);
    let end = (one.max(other) + reach).floor().clamp(-1.0, last - 1.0) + 1.0;
    begin as usize..end as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_requested_width() {
        let mut sheet = Sheet::blank();
        sheet.line((5.0, 10.0), (20.0, 10.0), 2.0);
        let ink: Vec<f32> = sheet.coverage(0.5).collect();
        let at = |column: usize, row: usize| ink[row * SIDE + column];
        assert_eq!([at(12, 10), at(12, 11), at(12, 12), at(12, 13)], [1.0, 1.0, 0.5, 0.0]);
        assert_eq!([at(20, 10), at(21, 10), at(22, 10), at(23, 10)], [1.0, 1.0, 0.5, 0.0]);
        assert_eq!([at(5, 8), at(3, 10), at(2, 10)], [0.5, 0.5, 0.0]);
    }

    #[test]
    fn every_pixel_in_reach_is_drawn() {
        let mut sheet = Sheet::blank();
        let (from, to, radius) = ((3.3, 4.7), (9.1, 6.2), 1.3);
        sheet.line(from, to, radius);
        // Computes the distance from the ends of the line and from many points between them, for all pixels
        // of the sheet.
        for pixel in 0..PIXELS {
            let (x, y) = ((pixel % SIDE) as f32, (pixel / SIDE) as f32);
            let nearest = (0..=1000)
                .map(|i| i as f32 / 1000.0)
                .map(|t| (x - from.0 - t * (to.0 - from.0)).hypot(y - from.1 - t * (to.1 - from.1)) - radius)
                .fold(f32::MAX, f32::min);
            if nearest <= FADE_MAX {
                assert!((sheet.distance[pixel] - nearest).abs() < 0.01, "{x} {y}");
            } else {
                assert!(sheet.distance[pixel] > FADE_MAX);
            }
        }
    }

    #[test]
    fn lines_off_the_sheet_leave_no_ink() {
        let mut sheet = Sheet::blank();
        sheet.line((-50.0, -50.0), (-9.0, -4.0), 2.0);
        sheet.line((40.0, 5.0), (400.0, 5.0), 2.0);
        assert_eq!(sheet.coverage(1.0).sum::<f32>(), 0.0);
        sheet.line((-50.0, 13.0), (50.0, 13.0), 1.0);
        assert_eq!(sheet.coverage(0.5).filter(|&ink| ink == 1.0).count(), SIDE);
    }

    #[test]
    fn a_line_without_length_is_a_dot() {
        let mut sheet = Sheet::blank();
        sheet.line((7.0, 7.0), (7.0, 7.0), 1.0);
        assert_eq!(sheet.coverage(0.5).sum::<f32>(), 1.0 + 4.0 * 0.5 + 4.0 * (0.5 + (1.0 - 2.0f32.sqrt())));
    }
}
