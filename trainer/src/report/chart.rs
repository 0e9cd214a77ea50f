//! Line charts as SVG.

use plotters::coord::Shift;
use plotters::prelude::*;

/// Width and height of a chart, in pixels.
const SIZE: (u32, u32) = (640, 320);
const COLOURS: [RGBColor; 4] =
    [RGBColor(31, 90, 166), RGBColor(214, 96, 29), RGBColor(56, 132, 73), RGBColor(128, 80, 160)];

/// One line of a chart.
pub(super) struct Line<'a> {
    pub name: &'a str,
    /// (x, y), finite, x ascending.
    pub points: Vec<(f64, f64)>,
    /// Whether its points are marked, as there are few.
    pub is_marked: bool,
}

/// A chart.
pub(super) struct Chart<'a> {
    pub title: &'a str,
    pub x: &'a str,
    /// With its unit.
    pub y: &'a str,
    /// Whether the y axis begins at 0.
    pub from_zero: bool,
    pub lines: Vec<Line<'a>>,
}

impl Chart<'_> {
    /// The chart as an SVG element; none if there is nothing to draw.
    pub fn svg(&self) -> Option<String> {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let x = range(points().map(|p| p.0), false)?;
        let y = range(points().map(|p| p.1), self.from_zero)?;
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            // Writing to a text does not fail.
            self.draw(&area, x, y).ok()?;
        }
        Some(svg)
    }

    fn draw(
        &self,
        area: &DrawingArea<SVGBackend, Shift>,
        x: (f64, f64),
        y: (f64, f64),
    ) -> Result<(), Box<dyn std::error::Error>> {
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(64)
            .build_cartesian_2d(x.0..x.1, y.0..y.1)?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .x_desc(self.x)
            .y_desc(self.y)
            .x_labels(8)
            .y_labels(6)
            .x_label_formatter(&|value| number(*value))
            .y_label_formatter(&|value| number(*value))
            .draw()?;
        for (line, colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            let colour = *colour;
            chart
                .draw_series(LineSeries::new(line.points.iter().copied(), colour.stroke_width(2)))?
                .label(line.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
            if line.is_marked {
                chart.draw_series(line.points.iter().map(|&p| Circle::new(p, 3, colour.filled())))?;
            }
        }
        if self.lines.len() > 1 {
            chart
                .configure_series_labels()
                .background_style(WHITE.mix(0.8))
                .border_style(RGBColor(200, 200, 200))
                .draw()?;
        }
        area.present()?;
        Ok(())
    }
}

/// The least and the largest value with some room; none without values.
fn range(values: impl Iterator<Item = f64>, from_zero: bool) -> Option<(f64, f64)> {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
    if !low.is_finite() || !high.is_finite() {
        return None;
    }
    let low = if from_zero { low.min(0.0) } else { low };
    let room = match high - low {
        0.0 => high.abs().max(1.0) * 0.1,
        width => width * 0.04,
    };
    Some((if from_zero { low } else { low - room }, high + room))
}

/// A number of an axis: short, whatever its size.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        a if a >= 1e6 => format!("{value:.1e}"),
        a if a >= 100.0 => format!("{value:.0}"),
        a if a >= 1e-3 => {
            let text = format!("{value:.4}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        _ => format!("{value:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>) -> Chart<'static> {
        let line = Line { name: "loss", points, is_marked: true };
        Chart { title: "Loss <train>", x: "step", y: "loss", from_zero: false, lines: vec![line] }
    }

    #[test]
    fn a_chart_has_its_title_axes_and_line_and_none_is_drawn_of_nothing() {
        let svg = chart(vec![(1.0, 2.0), (2.0, 1.0), (3.0, 0.5)]).svg().unwrap();
        for part in ["<svg", "Loss &lt;train&gt;", "<polyline", "step", "<circle"] {
            assert!(svg.contains(part), "no {part} in {svg}");
        }
        assert_eq!(chart(vec![]).svg(), None);
    }

    #[test]
    fn one_point_and_equal_values_are_drawn() {
        assert!(chart(vec![(1.0, 2.0)]).svg().is_some());
        assert!(chart(vec![(1.0, 0.0), (2.0, 0.0)]).svg().is_some());
    }

    #[test]
    fn numbers_of_axes_are_short() {
        let texts = [0.0, 0.25, 1.0, 12.5, 1500.0, 2e-5, 3.2e7].map(number);
        assert_eq!(texts, ["0", "0.25", "1", "12.5", "1500", "2.0e-5", "3.2e7"]);
    }
}
