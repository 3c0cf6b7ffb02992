//! The demo's output on standard error. On a terminal, messages scroll above a progress bar and the summary line.
//! Elsewhere, each message and each summary is one line.

use std::io::IsTerminal;

use garenne_common::text::{printable, printable_lines};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// Prints messages and progress to standard error.
pub(super) struct Screen {
    live: Option<Live>,
}

struct Live {
    all: MultiProgress,
    bar: ProgressBar,
    line: ProgressBar,
}

impl Screen {
    pub(super) fn new() -> Self {
        let live = std::io::stderr().is_terminal().then(|| {
            let all = MultiProgress::new();
            let bar = all.add(ProgressBar::new(0));
            let style = "{msg} {wide_bar:.cyan/dim} {human_pos}/{human_len} readings";
            bar.set_style(
                ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            let line = all.add(ProgressBar::new_spinner());
            line.set_style(
                ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_spinner()),
            );
            Live { all, bar, line }
        });
        Self { live }
    }

    /// Prints a message.
    pub(super) fn say(&self, text: &str) {
        let text = printable_lines(text);
        match &self.live {
            Some(live) => drop(live.all.println(text)),
            None => eprintln!("{text}"),
        }
    }

    /// Updates the progress bar: the current pass of the recording.
    pub(super) fn pass(&self, what: &str, sent: u64, of: u64) {
        if let Some(Live { bar, .. }) = &self.live {
            bar.set_message(what.to_owned());
            bar.set_length(of);
            bar.set_position(sent.min(of));
        }
    }

    /// Updates the summary line.
    pub(super) fn summary(&self, line: &str) {
        let line = printable(line);
        match &self.live {
            Some(live) => live.line.set_message(line.into_owned()),
            None => eprintln!("{line}"),
        }
    }

    /// Removes the progress bar and the summary line.
    pub(super) fn end(&self) {
        if let Some(live) = &self.live {
            live.bar.finish_and_clear();
            let last = live.line.message();
            live.line.finish_and_clear();
            let _ = live.all.println(last);
        }
    }
}
