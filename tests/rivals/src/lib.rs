//! The common parts of all rivals: the command line and the output.

use std::{
    io::Write,
    sync::atomic::{AtomicUsize, Ordering},
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// The command line of every rival: `--amqp-url URL --queue NAME --prefetch N --count N`.
#[derive(Clone, Debug)]
pub struct Options {
    pub amqp_url: String,
    pub queue: String,
    pub prefetch: u16,
    /// Number of tasks. After them the rival writes `done` and waits to be killed.
    pub count: usize,
    /// Whether several deliveries are acked at once.
    pub multiple: bool,
}

/// A task whose payload is ignored, like that of Garenne's `bench.noop`.
#[derive(Debug, Deserialize, Serialize)]
pub struct Noop {}

impl Options {
    /// Reads the command line.
    pub fn read() -> Result<Self> {
        let option = |name: &str| {
            std::env::args()
                .skip_while(|word| word != name)
                .nth(1)
                .with_context(|| format!("{name} is missing"))
        };
        Ok(Self {
            amqp_url: option("--amqp-url")?,
            queue: option("--queue")?,
            prefetch: option("--prefetch")?.parse()?,
            count: option("--count")?.parse()?,
            multiple: std::env::args().any(|word| word == "--multiple"),
        })
    }
}

/// Reports that every task is done.
pub fn done() {
    println!("done");
    let _ = std::io::stdout().flush();
}

/// Tasks that are not done, for libraries that call a handler for each task.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// Sets the number of tasks.
pub fn expect(count: usize) {
    LEFT.store(count, Ordering::Relaxed);
}

/// Counts a task, and reports the end after the last one.
pub fn count() {
    if LEFT.fetch_sub(1, Ordering::Relaxed) == 1 {
        done();
    }
}
