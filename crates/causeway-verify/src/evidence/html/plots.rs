//! Plots as SVG, set by hand: dots over two axes, with a roof or a limit.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::escape;

/// The drawing, in the units of its view box.
const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 256.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = 10.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 36.0;

/// From numbers to places.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    from: f64,
    to: f64,
    logarithmic: bool,
}

impl Scale {
    pub fn linear(from: f64, to: f64) -> Self {
        Scale { from, to, logarithmic: false }
    }

    /// Ends at whole powers of ten. Both ends have to be above 0.
    pub fn logarithmic(from: f64, to: f64) -> Self {
        let (from, mut to) = (10f64.powf(from.log10().floor()), 10f64.powf(to.log10().ceil()));
        if to <= from {
            to = from * 10.0;
        }
        Scale { from, to, logarithmic: true }
    }

    /// 0 at one end, 1 at the other; what lies outside goes to the edge.
    fn place(self, value: f64) -> f64 {
        if value.is_nan() {
            return 1.0;
        }
        let at = match self.logarithmic {
            true => (value.max(f64::MIN_POSITIVE) / self.from).log10() / (self.to / self.from).log10(),
            false => (value - self.from) / (self.to - self.from),
        };
        at.clamp(0.0, 1.0)
    }

    /// Where lines of the grid go: powers of ten, at most eight, or quarters of 1.
    fn ticks(self) -> Vec<f64> {
        if !self.logarithmic {
            let count = ((self.to - self.from) / 0.25).floor() as usize;
            return (0..=count).map(|i| self.from + i as f64 * 0.25).collect();
        }
        let (first, last) = (self.from.log10().round() as i32, self.to.log10().round() as i32);
        let step = ((last - first) as usize / 8 + 1).max(1);
        (first..=last).step_by(step).map(|power| 10f64.powi(power)).collect()
    }
}

pub(super) struct Dot {
    pub x: f64,
    pub y: f64,
    pub class: String,
    pub title: String,
    /// What the dot is measured against, at the same x.
    pub from: Option<f64>,
}

/// Dots, their axes, and lines.
pub(super) struct Scatter {
    pub title: String,
    pub about: String,
    pub x: (Scale, &'static str),
    pub y: (Scale, &'static str),
    /// True if x is a part of something.
    pub percent: bool,
    pub dots: Vec<Dot>,
    /// A line that dots lie below.
    pub roof: Vec<(f64, f64)>,
    /// A value of x that dots have to stay left of.
    pub limit: Option<(f64, &'static str)>,
}

impl Scatter {
    pub fn render(&self) -> String {
        let mut svg = String::new();
        // Writing to a `String` cannot fail.
        let _ = write!(
            svg,
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            escape(&format!("{}. {}", self.title, self.about))
        );
        self.axes(&mut svg);
        if let Some((limit, name)) = self.limit {
            let x = self.across(limit);
            let _ = write!(
                svg,
                "<line class=\"limit\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{:.1}\"/>\
                 <text class=\"limit-text\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                HEIGHT - BOTTOM,
                TOP - 6.0,
                escape(name)
            );
        }
        if !self.roof.is_empty() {
            let points: Vec<_> =
                self.roof.iter().map(|&(x, y)| format!("{:.1},{:.1}", self.across(x), self.up(y))).collect();
            let _ = write!(svg, "<polyline class=\"roof\" points=\"{}\"/>", points.join(" "));
        }
        self.dots(&mut svg);
        svg.push_str("</svg>");
        svg
    }

    fn across(&self, x: f64) -> f64 {
        LEFT + self.x.0.place(x) * (WIDTH - LEFT - RIGHT)
    }

    fn up(&self, y: f64) -> f64 {
        HEIGHT - BOTTOM - self.y.0.place(y) * (HEIGHT - BOTTOM - TOP)
    }

    fn axes(&self, svg: &mut String) {
        let bottom = HEIGHT - BOTTOM;
        for tick in self.x.0.ticks() {
            let x = self.across(tick);
            let text = if self.percent { format!("{:.0}%", tick * 100.0) } else { short(tick) };
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>",
                bottom + 15.0
            );
        }
        for tick in self.y.0.ticks() {
            let y = self.up(tick);
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 5.0,
                y + 4.0,
                short(tick)
            );
        }
        let _ = write!(
            svg,
            "<path class=\"axis\" d=\"M{LEFT} {TOP}V{bottom}H{:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text><text x=\"0\" y=\"{:.1}\">{}</text>",
            WIDTH - RIGHT,
            WIDTH - RIGHT,
            HEIGHT - 4.0,
            escape(self.x.1),
            TOP - 14.0,
            escape(self.y.1)
        );
    }

    /// Dots that fall on the same place are one, which names the first and counts the others.
    fn dots(&self, svg: &mut String) {
        let mut places: BTreeMap<(i64, i64, &str), (&Dot, usize)> = BTreeMap::new();
        for dot in &self.dots {
            let place =
                (self.across(dot.x).round() as i64, self.up(dot.y).round() as i64, dot.class.as_str());
            places.entry(place).or_insert((dot, 0)).1 += 1;
        }
        for (dot, _) in places.values() {
            if let Some(from) = dot.from {
                let (x, y) = (self.across(dot.x), self.up(from));
                let _ =
                    write!(svg, "<path class=\"gap\" d=\"M{x:.1} {:.1}V{y:.1}m-3 0h6\"/>", self.up(dot.y));
            }
        }
        for (dot, count) in places.values() {
            let more = if *count > 1 { format!(" (and {} more here)", count - 1) } else { String::new() };
            let _ = write!(
                svg,
                "<circle class=\"{}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\"><title>{}{more}</title></circle>",
                escape(&dot.class),
                self.across(dot.x),
                self.up(dot.y),
                escape(&dot.title)
            );
        }
    }
}

/// A number on an axis: `0.01`, `100`, `10k`, `1M`.
fn short(number: f64) -> String {
    const UNITS: [(f64, &str); 5] = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")];
    if number == 0.0 {
        return "0".to_string();
    }
    if number < 1e-3 {
        return format!("{number:.0e}");
    }
    match UNITS.iter().find(|(least, _)| number >= *least) {
        Some((least, unit)) => format!("{}{unit}", number / if *unit == "k" { 1e3 } else { *least }),
        None => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_end_at_powers_of_ten_and_keep_what_is_outside_on_the_edge() {
        let scale = Scale::logarithmic(0.02, 300.0);
        assert_eq!((scale.from, scale.to), (0.01, 1000.0));
        assert_eq!(scale.ticks(), [0.01, 0.1, 1.0, 10.0, 100.0, 1000.0]);
        assert!((scale.place(1.0) - 0.4).abs() < 1e-12);
        assert_eq!((scale.place(0.0), scale.place(f64::INFINITY), scale.place(f64::NAN)), (0.0, 1.0, 1.0));
        assert_eq!(Scale::linear(0.0, 1.1).ticks(), [0.0, 0.25, 0.5, 0.75, 1.0]);
        assert!(Scale::logarithmic(1.0, 1e30).ticks().len() <= 9);
    }

    #[test]
    fn numbers_on_axes_are_short() {
        for (number, text) in [
            (0.0, "0"),
            (0.01, "0.01"),
            (1000.0, "1000"),
            (1e4, "10k"),
            (1e6, "1M"),
            (1e11, "100G"),
            (1e-5, "1e-5"),
        ] {
            assert_eq!(short(number), text);
        }
    }
}
