//! The pictures: lines with error bars, and bars, as SVG text that needs nothing else.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Size of a picture.
const SIZE: (u32, u32) = (1000, 460);
/// Colours that people with any kind of sight tell apart (Okabe, Ito, "Color Universal Design", 2008).
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(120, 120, 120),
];
const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(225, 225, 225);

/// A value at a place, with its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dot {
    /// Place.
    pub x: f64,
    /// Value.
    pub y: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// A line of a chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// In the legend.
    pub label: String,
    /// From left to right.
    pub dots: Vec<Dot>,
    /// Which colour.
    pub color: usize,
    /// Drawn in dashes: a comparison or a bound, not a measurement of ours.
    pub dashed: bool,
}

/// How an axis counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Evenly, from 0.
    Linear,
    /// By factors of two.
    Log2,
}

impl Scale {
    fn place(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::Log2 => value.max(1e-12).log2(),
        }
    }

    fn label(self, place: f64) -> String {
        match self {
            Self::Linear => crate::compare::number((place * 1e6).round() / 1e6),
            // Only whole powers have a label.
            Self::Log2 if (place - place.round()).abs() > 1e-6 => String::new(),
            Self::Log2 => power(place.round()),
        }
    }

    fn range(self, values: impl Iterator<Item = f64> + Clone) -> std::ops::Range<f64> {
        let most = values.clone().fold(f64::MIN, f64::max);
        let least = values.fold(f64::MAX, f64::min);
        match self {
            Self::Linear => 0.0..(most * 1.08).max(1e-9),
            Self::Log2 => (self.place(least) - 0.25).floor()..(self.place(most) + 0.25).ceil(),
        }
    }
}

/// 2 to the power of `exponent`, as people write it.
fn power(exponent: f64) -> String {
    let value = exponent.exp2();
    match exponent as i64 {
        30.. => format!("{}G", value / f64::from(1 << 30)),
        20..=29 => format!("{}M", value / f64::from(1 << 20)),
        14..=19 => format!("{}k", value / 1024.0),
        0..=13 => format!("{value}"),
        _ => crate::compare::number(value),
    }
}

/// A chart of lines.
#[derive(Debug, Clone, PartialEq)]
pub struct LineChart {
    /// Above it.
    pub title: String,
    /// Below the axis, with the unit.
    pub x_label: String,
    /// Beside the axis, with the unit.
    pub y_label: String,
    /// How x counts.
    pub x: Scale,
    /// How y counts.
    pub y: Scale,
    /// What is drawn.
    pub lines: Vec<Line>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// An SVG made by drawing.
fn svg(size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> Result<()>) -> Result<String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        draw(&area)?;
        area.present().map_err(failed)?;
    }
    Ok(text)
}

/// Errors of the drawing library hold the backend, which can't leave this crate.
fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("a chart can't be drawn: {error}")
}

fn font(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

impl LineChart {
    /// Draws it.
    ///
    /// # Errors
    /// None that is expected: the text grows in memory.
    pub fn draw(&self) -> Result<String> {
        svg(SIZE, |area| {
            let dots = || self.lines.iter().flat_map(|line| &line.dots);
            // On a line of powers of two, whole ones end the axis.
            let x = match self.x {
                Scale::Linear => self.x.range(dots().map(|dot| dot.x)),
                Scale::Log2 => {
                    let places = dots().map(|dot| self.x.place(dot.x));
                    places.clone().fold(f64::MAX, f64::min) - 0.15..places.fold(f64::MIN, f64::max) + 0.15
                }
            };
            let y = self.y.range(dots().flat_map(|dot| [dot.low, dot.y, dot.high]));
            let mut chart = ChartBuilder::on(area)
                .caption(&self.title, font(20))
                .margin(14)
                .margin_right(14 + self.legend_width())
                .x_label_area_size(46)
                .y_label_area_size(70)
                .build_cartesian_2d(x.clone(), y.clone())
                .map_err(failed)?;
            let whole = |range: &std::ops::Range<f64>| (range.end.floor() - range.start.ceil()) as usize + 1;
            let (x_labels, y_labels) = match (self.x, self.y) {
                (Scale::Log2, Scale::Log2) => (whole(&x), whole(&y)),
                (Scale::Log2, Scale::Linear) => (whole(&x), 8),
                (Scale::Linear, Scale::Log2) => (10, whole(&y)),
                (Scale::Linear, Scale::Linear) => (10, 8),
            };
            chart
                .configure_mesh()
                .x_desc(&self.x_label)
                .y_desc(&self.y_label)
                .axis_desc_style(font(16))
                .label_style(font(14))
                .x_labels(x_labels)
                .y_labels(y_labels)
                .x_label_formatter(&|place| self.x.label(*place))
                .y_label_formatter(&|place| self.y.label(*place))
                .light_line_style(WHITE)
                .bold_line_style(GRID)
                .axis_style(INK)
                .draw()
                .map_err(failed)?;
            for line in &self.lines {
                let color = COLORS[line.color % COLORS.len()];
                let place = |x: f64, y: f64| (self.x.place(x), self.y.place(y));
                let path: Vec<(f64, f64)> = line.dots.iter().map(|dot| place(dot.x, dot.y)).collect();
                let style = color.stroke_width(2);
                if line.dashed {
                    chart.draw_series(DashedLineSeries::new(path, 6, 5, style)).map_err(failed)?;
                } else {
                    chart.draw_series(LineSeries::new(path.clone(), style)).map_err(failed)?;
                    let dot = |&at: &(f64, f64)| Circle::new(at, 4, color.filled());
                    chart.draw_series(path.iter().map(dot)).map_err(failed)?;
                }
                let bars = line.dots.iter().filter(|dot| dot.high > dot.low).map(|dot| {
                    let (x, y) = place(dot.x, dot.y);
                    let (low, high) = (self.y.place(dot.low), self.y.place(dot.high));
                    ErrorBar::new_vertical(x, low, y, high, color.filled(), 9)
                });
                chart.draw_series(bars).map_err(failed)?;
            }
            self.legend(area)
        })
    }

    /// Pixels beside the chart that the legend takes.
    fn legend_width(&self) -> u32 {
        let longest = self.lines.iter().map(|line| line.label.chars().count()).max().unwrap_or(0) as u32;
        longest * 15 / 2 + 44
    }

    /// Beside the chart, where it hides no line.
    fn legend(&self, area: &Area<'_>) -> Result<()> {
        let left = font(14).pos(Pos::new(HPos::Left, VPos::Center));
        let x = (SIZE.0 - self.legend_width()) as i32;
        for (index, line) in self.lines.iter().enumerate() {
            let y = 60 + 22 * index as i32;
            let (path, style) =
                (vec![(x, y), (x + 24, y)], COLORS[line.color % COLORS.len()].stroke_width(2));
            match line.dashed {
                true => area.draw(&DashedPathElement::new(path, 6, 5, style)).map_err(failed)?,
                false => area.draw(&PathElement::new(path, style)).map_err(failed)?,
            }
            area.draw(&Text::new(line.label.clone(), (x + 30, y), left.clone())).map_err(failed)?;
        }
        Ok(())
    }
}

/// A chart of horizontal bars, each of parts end to end.
#[derive(Debug, Clone, PartialEq)]
pub struct BarChart {
    /// Above it.
    pub title: String,
    /// Below the axis, with the unit.
    pub x_label: String,
    /// Names of the parts, for the legend; empty if there is one.
    pub parts: Vec<String>,
    /// Name, parts, and the interval of their sum.
    pub bars: Vec<Bar>,
}

/// Name, parts, and the interval of their sum.
pub type Bar = (String, Vec<f64>, Option<(f64, f64)>);

impl BarChart {
    /// Draws it.
    ///
    /// # Errors
    /// None that is expected: the text grows in memory.
    pub fn draw(&self) -> Result<String> {
        let count = self.bars.len().max(1);
        let height = 130 + 26 * count as u32 + if self.parts.is_empty() { 0 } else { 26 };
        svg((SIZE.0, height), |area| {
            let ends = self.bars.iter().map(|(_, parts, interval)| {
                parts.iter().sum::<f64>().max(interval.map_or(0.0, |(_, high)| high))
            });
            let most = ends.fold(0.0, f64::max).max(1e-12) * 1.05;
            let top = if self.parts.is_empty() { 0 } else { 26 };
            let longest = self.bars.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or(0) as u32;
            let mut chart = ChartBuilder::on(area)
                .caption(&self.title, font(20))
                .margin(14)
                .margin_top(14 + top)
                .x_label_area_size(46)
                .y_label_area_size((longest * 15 / 2 + 16).clamp(80, 380))
                .build_cartesian_2d(0.0..most, -0.6..count as f64 - 0.4)
                .map_err(failed)?;
            chart
                .configure_mesh()
                .disable_y_mesh()
                .disable_y_axis()
                .x_desc(&self.x_label)
                .axis_desc_style(font(16))
                .label_style(font(14))
                .x_label_formatter(&|x| Scale::Linear.label(*x))
                .light_line_style(WHITE)
                .bold_line_style(GRID)
                .axis_style(INK)
                .draw()
                .map_err(failed)?;
            let name = font(14).pos(Pos::new(HPos::Right, VPos::Center));
            for (index, (label, parts, interval)) in self.bars.iter().enumerate() {
                // The first bar is the uppermost.
                let y = (count - 1 - index) as f64;
                let mut from = 0.0;
                for (part, value) in parts.iter().enumerate() {
                    let bar = Rectangle::new(
                        [(from, y - 0.33), (from + value, y + 0.33)],
                        COLORS[part % COLORS.len()].filled(),
                    );
                    chart.draw_series([bar]).map_err(failed)?;
                    from += value;
                }
                if let Some((low, high)) = interval.filter(|(low, high)| high > low) {
                    let bar = ErrorBar::new_horizontal(y, low, from.clamp(low, high), high, INK.filled(), 7);
                    chart.draw_series([bar]).map_err(failed)?;
                }
                let at = chart.backend_coord(&(0.0, y));
                area.draw(&Text::new(label.clone(), (at.0 - 8, at.1), name.clone())).map_err(failed)?;
            }
            self.legend(area)
        })
    }

    fn legend(&self, area: &Area<'_>) -> Result<()> {
        let left = font(14).pos(Pos::new(HPos::Left, VPos::Center));
        let mut x = 24;
        for (part, label) in self.parts.iter().enumerate() {
            let color = COLORS[part % COLORS.len()].filled();
            area.draw(&Rectangle::new([(x, 12), (x + 14, 26)], color)).map_err(failed)?;
            area.draw(&Text::new(label.clone(), (x + 20, 19), left.clone())).map_err(failed)?;
            x += 32 + 66 * label.chars().count() as i32 / 10;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_name_axes_lines_and_bars() {
        let dot = |x: f64| Dot { x, y: 0.9 * x, low: 0.8 * x, high: x };
        let line = |label: &str, dashed| Line {
            label: label.into(),
            dots: [1.0, 2.0, 4.0].map(dot).to_vec(),
            color: 1,
            dashed,
        };
        let chart = LineChart {
            title: "Strong scaling".into(),
            x_label: "ranks".into(),
            y_label: "speed-up".into(),
            x: Scale::Log2,
            y: Scale::Linear,
            lines: vec![line("muster", false), line("ideal", true)],
        };
        let text = chart.draw().expect("drawn");
        for word in ["<svg", "Strong scaling", "ranks", "speed-up", "muster", "ideal", "circle"] {
            assert!(text.contains(word), "{word} in {text}");
        }
        let bars = BarChart {
            title: "Step".into(),
            x_label: "seconds".into(),
            parts: vec!["compute".into(), "communication".into()],
            bars: vec![
                ("1 rank".into(), vec![1.0, 0.0], Some((0.9, 1.1))),
                ("2 ranks".into(), vec![0.5, 0.1], None),
            ],
        };
        let text = bars.draw().expect("drawn");
        assert!(
            ["1 rank", "2 ranks", "communication", "seconds"].iter().all(|word| text.contains(word)),
            "{text}"
        );
        assert_eq!((power(0.0), power(20.0), power(16.0)), ("1".into(), "1M".into(), "64k".to_owned()));
    }
}
