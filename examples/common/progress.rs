//! Progress bars on standard error; none are drawn when it is not a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of `len` steps, counted in `unit`.
pub fn bar(what: &'static str, len: usize, unit: &str) -> ProgressBar {
    let template = format!("{{prefix:8}} {{bar:32}} {{pos}}/{{len}} {unit} {{msg}}");
    let style = ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(len as u64).with_style(style).with_prefix(what)
}

/// A bar of bytes, with their rate and the time that is left.
pub fn bytes(what: &'static str) -> ProgressBar {
    let template =
        "{prefix:8} {bar:32} {binary_bytes}/{binary_total_bytes} {decimal_bytes_per_sec}, {eta} left";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style).with_prefix(what)
}

/// A sign of life without a measure.
pub fn spinner(what: String) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(what);
    spinner.enable_steady_tick(Duration::from_millis(120));
    spinner
}
