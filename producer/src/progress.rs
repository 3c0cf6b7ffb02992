//! Progress on stderr: a bar on a terminal, else a line every few seconds.

use std::{
    fmt::Display,
    io::IsTerminal,
    sync::Mutex,
    sync::PoisonError,
    time::{Duration, Instant},
};

use garenne_common::text::printable;
use indicatif::{ProgressBar, ProgressStyle};

/// Shows progress on stderr, because stdout is for the result.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    what: &'static str,
    size: Option<u64>,
    last: Mutex<Instant>,
}

/// Interval of the lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

impl Progress {
    /// Progress through `size` bytes; `None` if the size is unknown.
    pub(crate) fn new(what: &'static str, size: Option<u64>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let (bar, template) = match size {
                Some(size) => (
                    ProgressBar::new(size),
                    "{prefix} {bar:32} {percent:>3}% {binary_bytes}/{binary_total_bytes} eta {eta} {msg}",
                ),
                None => (ProgressBar::new_spinner(), "{prefix} {spinner} {elapsed} {msg}"),
            };
            bar.set_style(ProgressStyle::with_template(template).expect("the template is well-formed"));
            bar.set_prefix(what);
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Self { bar, what, size, last: Mutex::new(Instant::now()) }
    }

    /// Shows the position and these figures.
    pub(crate) fn update(&self, bytes: u64, figures: impl Display) {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
            bar.set_message(figures.to_string());
            return;
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.elapsed() >= LINE_INTERVAL {
            *last = Instant::now();
            match self.size.filter(|size| *size > 0) {
                Some(size) => eprintln!("{} {}% {figures}", self.what, bytes.min(size) * 100 / size),
                None => eprintln!("{} {figures}", self.what),
            }
        }
    }

    /// Prints a line above the bar.
    pub(crate) fn print(&self, line: impl Display) {
        // The line may quote untrusted text.
        let line = line.to_string();
        let line = printable(&line);
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{}: {line}", self.what)),
            None => eprintln!("{}: {line}", self.what),
        }
    }

    /// Shows the final figures.
    pub(crate) fn finish(&self, figures: impl Display) {
        match &self.bar {
            Some(bar) => bar.finish_with_message(figures.to_string()),
            None => eprintln!("{} 100% {figures}", self.what),
        }
    }
}
