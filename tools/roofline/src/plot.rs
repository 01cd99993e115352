//! The plot: operations per byte of weights against operations per second, both in decades, under the roofs of the same run.

use std::fmt::Write;

use super::results::Results;

/// Of the whole, in pixels.
const SIZE: [f64; 2] = [760.0, 460.0];

/// Around the axes: left, top, right, bottom.
const MARGIN: [f64; 4] = [64.0, 16.0, 24.0, 48.0];

/// Of lines and text: readable on white and on black.
const GREY: &str = "#7d8590";

/// Of types, in turn; readable on white and on black.
const COLOURS: [&str; 5] = ["#3b82f6", "#f59e0b", "#10b981", "#ef4444", "#a855f7"];

/// An axis in decades: the logarithms of its ends, and where in pixels those are.
struct Axis {
    first: i32,
    last: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// From the decade of the least value to somewhat above the greatest.
    fn new(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
        Axis { first: low.log10().floor() as i32, last: high.log10() + 0.2, from, to }
    }

    fn at(&self, value: f64) -> f64 {
        let share = (value.log10() - f64::from(self.first)) / (self.last - f64::from(self.first));
        self.from + share * (self.to - self.from)
    }

    fn decades(&self) -> impl Iterator<Item = i32> {
        self.first..=self.last.floor() as i32
    }
}

pub fn svg(results: &Results) -> String {
    let roofs = &results.head.roofs;
    let (read, s8, f16) = (roofs.read / 1e12, roofs.s8 / 1e12, roofs.f16 / 1e12);
    let rows: Vec<_> = results.rows.iter().filter(|row| results.shapes.contains(&row.shape())).collect();
    let [left, top, right, bottom] = MARGIN;
    let [width, height] = SIZE;
    let intensity = rows.iter().map(|row| row.ops / row.bytes);
    let x = Axis::new(intensity.chain([s8 / read]), left, width - right);
    let y = Axis::new(rows.iter().map(|row| row.tops).chain([s8, f16]), height - bottom, top);

    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"13\" fill=\"{GREY}\">\n<title>Roofline of linear layers, {}</title>\n",
        escaped(&roofs.gpu)
    );
    for decade in x.decades() {
        let (at, low) = (x.at(10f64.powi(decade)), y.from + 18.0);
        grid(&mut text, [at, y.from, at, y.to]);
        writeln!(text, "<text x=\"{at:.0}\" y=\"{low:.0}\" text-anchor=\"middle\">{}</text>", number(decade))
            .unwrap();
    }
    for decade in y.decades() {
        let at = y.at(10f64.powi(decade));
        grid(&mut text, [x.from, at, x.to, at]);
        let (before, middle) = (x.from - 6.0, at + 4.0);
        writeln!(
            text,
            "<text x=\"{before:.0}\" y=\"{middle:.0}\" text-anchor=\"end\">{}</text>",
            number(decade)
        )
        .unwrap();
    }
    let (middle, low) = ((x.from + x.to) / 2.0, height - 10.0);
    writeln!(
        text,
        "<text x=\"{middle:.0}\" y=\"{low:.0}\" text-anchor=\"middle\">operations per byte of weights</text>"
    )
    .unwrap();
    let middle = (y.from + y.to) / 2.0;
    let turned = format!("transform=\"translate(16 {middle:.0}) rotate(-90)\" text-anchor=\"middle\"");
    writeln!(text, "<text {turned}>TOPS</text>").unwrap();

    // The slope from where it enters the plot; the ceilings from where they meet it.
    let enters = 10f64.powi(x.first).max(10f64.powi(y.first) / read);
    roof(&mut text, [x.at(enters), y.at(enters * read), x.at(s8 / read), y.at(s8)], "");
    for (rate, dash) in [(s8, ""), (f16, " stroke-dasharray=\"6 4\"")] {
        roof(&mut text, [x.at(rate / read), y.at(rate), x.to, y.at(rate)], dash);
    }
    let label = |text: &mut String, at: [f64; 2], anchor: &str, words: String| {
        writeln!(text, "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"{anchor}\">{words}</text>", at[0], at[1])
            .unwrap();
    };
    label(&mut text, [x.to - 4.0, y.at(s8) - 6.0], "end", format!("int8: {s8:.0} TOPS"));
    label(&mut text, [x.to - 4.0, y.at(f16) + 16.0], "end", format!("f16: {f16:.0} TFLOPS"));
    let on_slope = (enters * s8 / read).sqrt();
    let beside = [x.at(on_slope) - 10.0, y.at(on_slope * read) - 6.0];
    label(&mut text, beside, "end", format!("read: {:.0} GB/s", 1e3 * read));

    for (i, ty) in results.types().into_iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        writeln!(text, "<g fill=\"{colour}\">").unwrap();
        for row in rows.iter().filter(|row| row.case.ty == ty) {
            let at = [x.at(row.ops / row.bytes), y.at(row.tops)];
            let words = format!("{ty} {}, {} tokens: {:.1} us", row.shape(), row.case.m, row.us);
            writeln!(
                text,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"><title>{}</title></circle>",
                at[0],
                at[1],
                escaped(&words)
            )
            .unwrap();
        }
        let at = [x.to - 80.0, y.from - 16.0 - 20.0 * i as f64];
        writeln!(text, "<circle cx=\"{:.0}\" cy=\"{:.0}\" r=\"5\"/>", at[0], at[1] - 4.0).unwrap();
        label(&mut text, [at[0] + 12.0, at[1]], "start", escaped(ty));
        text += "</g>\n";
    }
    text + "</svg>\n"
}

fn grid(text: &mut String, ends: [f64; 4]) {
    line(text, ends, "stroke-opacity=\"0.3\"");
}

fn roof(text: &mut String, ends: [f64; 4], more: &str) {
    line(text, ends, &format!("stroke-width=\"2\"{more}"));
}

fn line(text: &mut String, [x1, y1, x2, y2]: [f64; 4], more: &str) {
    let ends = format!("x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"");
    writeln!(text, "<line {ends} stroke=\"{GREY}\" {more}/>").unwrap();
}

/// A power of ten, in few signs.
fn number(decade: i32) -> String {
    match decade {
        ..0 => format!("{}", 10f64.powi(decade)),
        0..3 => format!("{}", 10u32.pow(decade as u32)),
        3..6 => format!("{}k", 10u32.pow(decade as u32 - 3)),
        _ => format!("1e{decade}"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
