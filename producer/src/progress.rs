//! Progress on stderr: a bar on a terminal, else a line every few seconds. The summary on stdout.

use std::{
    fmt::Display,
    io::{self, Write},
    sync::Mutex,
    time::{Duration, Instant},
};

use garenne_common::{exit::Failure, lock::lock, stdout::print_line, text::printable};
use garenne_publish::SpoolCounts;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// Shows progress on stderr, because stdout is for the result.
pub(crate) struct Progress {
    /// Hidden if stderr is not a terminal.
    bar: ProgressBar,
    last_line: Mutex<Instant>,
}

/// Interval of the lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

impl Progress {
    /// Progress through `size` bytes; `None` if the size is unknown.
    pub(crate) fn new(what: &'static str, size: Option<u64>) -> Self {
        let template = match size {
            Some(_) => "{prefix} {bar:32} {percent:>3}% {binary_bytes}/{binary_total_bytes} eta {eta} {msg}",
            None => "{prefix} {spinner} {elapsed} {msg}",
        };
        let style = ProgressStyle::with_template(template).expect("the template is well-formed");
        let bar = size.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        let bar = bar.with_style(style).with_prefix(what);
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Self { bar, last_line: Mutex::new(Instant::now()) }
    }

    /// Shows the position and these figures.
    pub(crate) fn update(&self, bytes: u64, figures: impl Display) {
        if !self.bar.is_hidden() {
            self.bar.set_position(bytes);
            self.bar.set_message(figures.to_string());
            return;
        }
        let mut last_line = lock(&self.last_line);
        if last_line.elapsed() >= LINE_INTERVAL {
            *last_line = Instant::now();
            match self.bar.length().filter(|size| *size > 0) {
                Some(size) => {
                    let percent = bytes.min(size) * 100 / size;
                    error_line(format_args!("{} {percent}% {figures}", self.bar.prefix()));
                }
                None => error_line(format_args!("{} {figures}", self.bar.prefix())),
            }
        }
    }

    /// Prints a line above the bar.
    pub(crate) fn print(&self, line: impl Display) {
        // The line may quote untrusted text.
        let line = format!("{}: {}", self.bar.prefix(), printable(&line.to_string()));
        // The bar is locked while it is suspended.
        self.bar.suspend(|| error_line(line));
    }

    /// Says what is not in the broker yet.
    pub(crate) fn spooled(&self, counts: Option<&SpoolCounts>) {
        if let Some(SpoolCounts { spooled, waiting: waiting @ 1.. }) = counts {
            self.print(format_args!(
                "{spooled} spooled; {waiting} wait in the spool, `spool drain` or a later run publishes them"
            ));
        }
    }

    /// Shows the final figures.
    pub(crate) fn finish(&self, figures: impl Display) {
        if self.bar.is_hidden() {
            error_line(format_args!("{} 100% {figures}", self.bar.prefix()));
        } else {
            self.bar.finish_with_message(figures.to_string());
        }
    }
}

/// Prints the result of a command as one JSON line.
pub(crate) fn print_summary(summary: &impl Serialize) -> Result<(), Failure> {
    print_line(summary_line(summary))
}

/// Prints the result of a command that prints something else to stdout.
pub(crate) fn print_summary_to_stderr(summary: &impl Serialize) {
    error_line(summary_line(summary));
}

fn summary_line(summary: &impl Serialize) -> String {
    serde_json::to_string(summary).expect("a summary is plain JSON")
}

/// Prints a line to stderr. If stderr is closed, there is nowhere to report that.
fn error_line(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Rounds a figure of a summary to thousandths.
pub(crate) fn thousandths(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use indicatif::ProgressDrawTarget;

    use super::*;

    #[test]
    fn lines_are_printed_while_a_bar_is_shown_and_while_none_is() {
        for target in [ProgressDrawTarget::hidden(), ProgressDrawTarget::stdout()] {
            let progress = Progress::new("test", Some(10));
            progress.bar.set_draw_target(target);
            progress.print("line 1: not JSON");
            progress.update(5, "5 confirmed");
            progress.finish("10 confirmed");
        }
    }
}
