//! Draws accuracy against seconds and against updates. For each job, the picture shows the trial with the
//! median duration. The picture has a background of its own, so that it is readable on any page. This module
//! must not depend on how figures are measured.

use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use crate::WORKERS;
use crate::figures::Figures;
use crate::trial::Point;

const SIZE: (u32, u32) = (1080, 800);
/// The range of the accuracy axis, in per cent.
const ACCURACY: (f64, f64) = (90.0, 98.5);
/// The start of the time axis, in seconds. Earlier points are not drawn in any plot.
const FIRST_SECONDS: f64 = 0.3;
/// Colours that can also be distinguished by people with colour blindness (Okabe and Ito, 2008).
const COLORS: [RGBColor; 5] = [
    RGBColor(0, 114, 178),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
];
const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(225, 225, 225);

type Panel<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws the plots and writes them to an SVG file: equal workers in the first row, one slow worker in the
/// second.
pub(crate) fn draw(all: &[Figures], file: &Path) -> anyhow::Result<()> {
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let panels = area.margin(8, 8, 8, 8).split_evenly((2, 2));
    for (slowed, row) in [(false, &panels[..2]), (true, &panels[2..])] {
        let shown =
            |figures: &&Figures| figures.setting.workers == WORKERS && figures.setting.slowed == slowed;
        let lines: Vec<(String, &[Point])> = all
            .iter()
            .filter(shown)
            .filter_map(|figures| Some((figures.setting.sync.to_string(), &figures.middle()?.points[..])))
            .collect();
        let workers =
            if slowed { format!("{WORKERS} workers, one slow") } else { format!("{WORKERS} equal workers") };
        // Both rows of the picture use the same axes, so that they can be compared.
        let most = |figure: fn(&Point) -> f64| {
            let points = all.iter().filter_map(Figures::middle).flat_map(|trial| &trial.points);
            points.map(figure).fold(1.0, f64::max)
        };
        let seconds = (FIRST_SECONDS..most(|point| point.seconds) * 1.1).log_scale();
        panel(&row[0], &workers, ("seconds, logarithmic", seconds), |point| point.seconds, &lines, !slowed)?;
        let updates = 0.0..most(|point| point.updates) * 1.02;
        panel(&row[1], &workers, ("updates", updates), |point| point.updates, &lines, false)?;
    }
    area.present()?;
    Ok(())
}

fn panel<X>(
    panel: &Panel<'_>,
    title: &str,
    (of, range): (&str, X),
    x: fn(&Point) -> f64,
    lines: &[(String, &[Point])],
    legend: bool,
) -> anyhow::Result<()>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
{
    let font = |size: u32| ("sans-serif", size).into_font().color(&INK);
    let mut chart = ChartBuilder::on(panel)
        .caption(title, font(18))
        .margin(10)
        .x_label_area_size(44)
        .y_label_area_size(54)
        .build_cartesian_2d(range, ACCURACY.0..ACCURACY.1)?;
    let number = |x: &f64| if x.fract() == 0.0 { format!("{x:.0}") } else { format!("{x:.1}") };
    chart
        .configure_mesh()
        .x_desc(of)
        .y_desc("test images right, %")
        .axis_desc_style(font(15))
        .label_style(font(13))
        .x_label_formatter(&number)
        .y_label_formatter(&number)
        .axis_style(INK)
        .bold_line_style(GRID)
        .light_line_style(WHITE)
        .max_light_lines(1)
        .draw()?;
    for ((mode, points), color) in lines.iter().zip(COLORS) {
        let inside = |point: &&Point| point.accuracy >= ACCURACY.0 && point.seconds >= FIRST_SECONDS;
        let shown = points.iter().filter(inside);
        chart
            .draw_series(LineSeries::new(
                shown.map(|point| (x(point), point.accuracy)),
                color.stroke_width(2),
            ))?
            .label(mode)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], color.stroke_width(3)));
    }
    if legend {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE)
            .border_style(GRID)
            .label_font(font(14))
            .draw()?;
    }
    Ok(())
}
