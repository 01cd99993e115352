//! Progress bars on standard error; none are drawn when it is not a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of `len` steps, counted in `unit`.
pub fn bar(what: &'static str, len: usize, unit: &str) -> ProgressBar {
    let template = format!("{{prefix:8}} {{bar:32}} {{pos}}/{{len}} {unit} {{msg}}");
    let style = ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(len as u64).with_style(style).with_prefix(what)
}

/// A sign of life without a measure.
pub fn spinner(what: String) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(what);
    spinner.enable_steady_tick(Duration::from_millis(120));
    spinner
}
