//! A progress bar on stderr.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar without a length yet, hidden unless stderr is a terminal.
pub fn bar(what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {human_pos}/{human_len} {per_sec} eta {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style).with_message(what)
}
