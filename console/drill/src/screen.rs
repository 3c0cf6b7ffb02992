//! The output on standard error. On a terminal, messages scroll above the summary line. Elsewhere, each message and each
//! summary is one line.

use std::io::IsTerminal;

use garenne_common::text::{printable, printable_lines};
use indicatif::{ProgressBar, ProgressStyle};

/// Prints messages and summaries to standard error.
#[derive(Clone)]
pub(crate) struct Screen {
    /// On a terminal: the summary line.
    live: Option<ProgressBar>,
}

impl Screen {
    pub(crate) fn new() -> Self {
        let style = ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
        let is_terminal = std::io::stderr().is_terminal();
        Self { live: is_terminal.then(|| ProgressBar::new_spinner().with_style(style)) }
    }

    pub(crate) fn say(&self, text: &str) {
        let text = printable_lines(text);
        match &self.live {
            Some(live) => live.println(text),
            None => eprintln!("{text}"),
        }
    }

    /// Updates the summary line.
    pub(crate) fn summary(&self, line: &str) {
        let line = printable(line);
        match &self.live {
            Some(live) => live.set_message(line.into_owned()),
            None => eprintln!("{line}"),
        }
    }

    /// Ends the updates; the last summary stays.
    pub(crate) fn end(&self) {
        if let Some(live) = self.live.as_ref().filter(|live| !live.is_finished()) {
            live.finish_and_clear();
            eprintln!("{}", live.message());
        }
    }
}
