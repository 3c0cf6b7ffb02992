//! Where a person watches: what happens scrolls by, below it a bar and the summary line. Where nobody
//! does, one line a second.

use std::io::IsTerminal;

use garenne_common::text::{printable, printable_lines};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// Everything the demo says while it runs goes to stderr.
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

    /// Says something that stays.
    pub(super) fn say(&self, text: &str) {
        let text = printable_lines(text);
        match &self.live {
            Some(live) => drop(live.all.println(text)),
            None => eprintln!("{text}"),
        }
    }

    /// Draws the bar: this pass of the recording.
    pub(super) fn pass(&self, what: &str, sent: u64, of: u64) {
        if let Some(Live { bar, .. }) = &self.live {
            bar.set_message(what.to_owned());
            bar.set_length(of);
            bar.set_position(sent.min(of));
        }
    }

    /// Draws the summary line.
    pub(super) fn summary(&self, line: &str) {
        let line = printable(line);
        match &self.live {
            Some(live) => live.line.set_message(line.into_owned()),
            None => eprintln!("{line}"),
        }
    }

    /// Takes bar and line away, so that what comes next scrolls.
    pub(super) fn end(&self) {
        if let Some(live) = &self.live {
            live.bar.finish_and_clear();
            let last = live.line.message();
            live.line.finish_and_clear();
            let _ = live.all.println(last);
        }
    }
}
