//! The demo's output on standard error. On a terminal, messages scroll above a progress bar and the summary line.
//! Elsewhere, each message and each summary is one line.

use std::io::IsTerminal;

use garenne_common::text::{printable, printable_lines};
use indicatif::{ProgressBar, ProgressStyle};

/// Prints messages and progress to standard error.
pub(super) struct Screen {
    /// On a terminal: the current pass of the recording, and below it the summary.
    live: Option<ProgressBar>,
}

impl Screen {
    pub(super) fn new() -> Self {
        let live = std::io::stderr().is_terminal().then(|| {
            let style = "{prefix} {wide_bar:.cyan/dim} {human_pos}/{human_len} readings\n{msg}";
            let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(0).with_style(style)
        });
        Self { live }
    }

    /// Prints a message.
    pub(super) fn say(&self, text: &str) {
        let text = printable_lines(text);
        match &self.live {
            Some(live) => live.println(text),
            None => eprintln!("{text}"),
        }
    }

    /// Updates the progress bar: the current pass of the recording.
    pub(super) fn pass(&self, what: String, sent: u64, of: u64) {
        if let Some(live) = &self.live {
            live.set_prefix(what);
            live.set_length(of);
            live.set_position(sent.min(of));
        }
    }

    /// Updates the summary line.
    pub(super) fn summary(&self, line: &str) {
        let line = printable(line);
        match &self.live {
            Some(live) => live.set_message(line.into_owned()),
            None => eprintln!("{line}"),
        }
    }

    /// Removes the progress bar; the summary line stays.
    pub(super) fn end(&self) {
        if let Some(live) = &self.live {
            live.finish_and_clear();
            eprintln!("{}", live.message());
        }
    }
}
