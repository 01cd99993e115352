//! The section of the README: one table for each shape, tokens by types.

use std::fmt::Write;
use std::path::Path;

use super::results::{Results, Roof, Row, Shape};

/// Markdown. `image` is the plot, as the README names it.
pub fn section(results: &Results, image: Option<&Path>) -> String {
    let (head, roofs) = (&results.head, &results.head.roofs);
    let commit = head.commit.as_ref().map_or("unknown".into(), |commit| format!("`{commit}`"));
    let mut text = format!(
        "{}, {}, commit {commit}. Roofs of the same run: read {:.0} GB/s, matrix units {:.0} TOPS int8 and {:.0} TFLOPS f16.\n\
         Microseconds of one launch in a graph, weights not in a cache; the rate, and its share of the roof that binds \
         (GB/s: the\nread roof at that size; TOPS: int8; TFLOPS: f16)",
        roofs.gpu,
        date(head.time),
        roofs.read / 1e9,
        roofs.s8 / 1e12,
        roofs.f16 / 1e12,
    );
    if results.rows.iter().any(|row| row.ratio.is_some()) {
        write!(text, "; how many times as fast as {} on the same GPU", head.baseline.what).unwrap();
    }
    text += ".\n";
    if let Some(image) = image {
        write!(text, "\n![Roofline of the linear layers]({})\n", image.display()).unwrap();
    }
    for shape in &results.shapes {
        text += &table(results, *shape);
    }
    text
}

fn table(results: &Results, shape: Shape) -> String {
    let rows: Vec<&Row> = results.rows.iter().filter(|row| row.shape() == shape).collect();
    let types: Vec<&str> =
        results.types().into_iter().filter(|ty| rows.iter().any(|row| row.case.ty == *ty)).collect();
    let mut tokens: Vec<usize> = rows.iter().map(|row| row.case.m).collect();
    tokens.sort_unstable();
    tokens.dedup();
    if rows.is_empty() {
        return String::new();
    }
    let mut text = format!("\n| {} to {}, tokens | {} |\n", shape.k, shape.n, types.join(" | "));
    text += &format!("|--:|{}\n", "--:|".repeat(types.len()));
    for m in tokens {
        let cell = |ty: &&str| {
            rows.iter().find(|r| r.case.m == m && r.case.ty == **ty).map_or("".into(), |r| cell(r))
        };
        let cells: Vec<String> = types.iter().map(cell).collect();
        text += &format!("| {m} | {} |\n", cells.join(" | "));
    }
    text
}

fn cell(row: &Row) -> String {
    let us = if row.us < 100.0 { format!("{:.1}", row.us) } else { format!("{:.0}", row.us) };
    let (rate, unit) = match row.roof {
        Roof::Memory => (row.gb_per_s, "GB/s"),
        Roof::Int8 => (row.tops, "TOPS"),
        Roof::F16 => (row.tops, "TFLOPS"),
    };
    let mut text = format!("{us}, {rate:.0} {unit} ({:.0} %)", 100.0 * row.share);
    if let Some(ratio) = row.ratio {
        write!(text, ", {ratio:.2}x").unwrap();
    }
    text
}

/// Of seconds since 1970, in UTC: year, month and day of the Gregorian calendar.
pub fn date(seconds: u64) -> String {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut days) = (1970, seconds / 86_400);
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    format!("{year}-{:02}-{:02}", month + 1, days + 1)
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates() {
        for (seconds, expected) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (1_709_251_199, "2024-02-29"),
            (1_709_251_200, "2024-03-01"),
            (1_798_761_599, "2026-12-31"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }
}
