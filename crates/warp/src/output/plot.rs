//! Line charts as SVG: axes with round ticks, a legend, one colour per series. No script, no fonts
//! beyond the viewer's own, readable on light and dark pages.

use std::fmt::Write as _;

/// One chart; several make a page, one below the other.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x: String,
    pub(crate) y: String,
    pub(crate) series: Vec<Series>,
}

#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 48.0;
/// Distinguishable for colour-blind readers (Okabe and Ito's set).
const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f",
];

/// The charts as one SVG document.
pub(crate) fn svg(charts: &[Chart]) -> String {
    let height = HEIGHT * charts.len().max(1) as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    for (at, chart) in charts.iter().enumerate() {
        let _ = writeln!(svg, "<g transform=\"translate(0 {})\">", HEIGHT * at as f64);
        draw(&mut svg, chart);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw(svg: &mut String, chart: &Chart) {
    let finite = |&&(x, y): &&(f64, f64)| x.is_finite() && y.is_finite();
    let points = || {
        chart
            .series
            .iter()
            .flat_map(|series| &series.points)
            .filter(finite)
    };
    let x = Scale::over(points().map(|&(x, _)| x), LEFT, WIDTH - RIGHT);
    let y = Scale::over(points().map(|&(_, y)| y), HEIGHT - BOTTOM, TOP);
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"20\" font-size=\"14\" font-weight=\"bold\">{}</text>",
        escape(&chart.title)
    );
    for tick in x.ticks() {
        let at = x.place(tick);
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{}\" stroke=\"#e0e0e0\"/>\
             <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 16.0,
            number(tick)
        );
    }
    for tick in y.ticks() {
        let at = y.place(tick);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#e0e0e0\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            number(tick)
        );
    }
    let middle = LEFT.midpoint(WIDTH - RIGHT);
    let _ = writeln!(
        svg,
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
         <text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        HEIGHT - 10.0,
        escape(&chart.x),
        HEIGHT / 2.0,
        escape(&chart.y)
    );
    for (at, series) in chart.series.iter().enumerate() {
        line(svg, series, COLOURS[at % COLOURS.len()], &x, &y);
        legend(svg, series, COLOURS[at % COLOURS.len()], at);
    }
}

fn line(svg: &mut String, series: &Series, colour: &str, x: &Scale, y: &Scale) {
    let mut path = String::new();
    for &(px, py) in series
        .points
        .iter()
        .filter(|(x, y)| x.is_finite() && y.is_finite())
    {
        let step = if path.is_empty() { 'M' } else { 'L' };
        let _ = write!(path, "{step}{:.1} {:.1}", x.place(px), y.place(py));
    }
    let _ = writeln!(
        svg,
        "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"/>"
    );
}

fn legend(svg: &mut String, series: &Series, colour: &str, at: usize) {
    let (x, y) = (WIDTH - RIGHT + 12.0, TOP + 14.0 + 18.0 * at as f64);
    let _ = writeln!(
        svg,
        "<line x1=\"{x}\" x2=\"{}\" y1=\"{}\" y2=\"{}\" stroke=\"{colour}\" stroke-width=\"3\"/>\
         <text x=\"{}\" y=\"{y}\">{}</text>",
        x + 18.0,
        y - 4.0,
        y - 4.0,
        x + 24.0,
        escape(&series.name)
    );
}

/// Maps values to a length on the page.
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn over(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (low, high) = values.fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)));
        let (low, high) = if low > high { (0.0, 1.0) } else { (low, high) };
        let high = if high > low { high } else { low + 1.0 };
        Self {
            low,
            high,
            from,
            to,
        }
    }

    fn place(&self, value: f64) -> f64 {
        self.from + (value - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    /// Round numbers inside the range, four to eight of them.
    fn ticks(&self) -> Vec<f64> {
        let rough = (self.high - self.low) / 5.0;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .map(|f| f * power)
            .into_iter()
            .find(|&s| s >= rough);
        let step = step.unwrap_or(power * 10.0);
        let first = (self.low / step).ceil();
        (0..20)
            .map(|at| (first + f64::from(at)) * step)
            .take_while(|&tick| tick <= self.high + step * 1e-9)
            .collect()
    }
}

fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::{Chart, Scale, Series, svg};

    #[test]
    fn ticks_are_round_and_inside() {
        let ticks = Scale {
            low: 3.0,
            high: 98.0,
            from: 0.0,
            to: 1.0,
        }
        .ticks();
        assert_eq!(ticks, [20.0, 40.0, 60.0, 80.0]);
    }

    #[test]
    fn a_chart_is_well_formed_even_without_points() {
        let series = |points: Vec<(f64, f64)>| Series {
            name: "a<b".into(),
            points,
        };
        for points in [
            vec![],
            vec![(1.0, 2.0)],
            vec![(0.0, f64::NAN), (1.0, 1.0), (2.0, 3.0)],
        ] {
            let chart = Chart {
                title: "t & u".into(),
                x: "x".into(),
                y: "y".into(),
                series: vec![series(points)],
            };
            let text = svg(&[chart.clone(), chart]);
            assert!(text.starts_with("<svg") && text.ends_with("</svg>\n"));
            assert!(text.contains("a&lt;b") && text.contains("t &amp; u") && !text.contains("NaN"));
            assert_eq!(text.matches("<g ").count(), text.matches("</g>").count());
        }
    }
}
