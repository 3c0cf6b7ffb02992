//! What every rival is told, and what it says when it is done.

use std::{
    io::Write,
    sync::atomic::{AtomicUsize, Ordering},
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// The command line of each: `--amqp-url URL --queue NAME --prefetch N --count N`.
#[derive(Clone, Debug)]
pub struct Orders {
    pub amqp_url: String,
    pub queue: String,
    pub prefetch: u16,
    /// Tasks to do. After them it says so and waits to be killed.
    pub count: usize,
    /// Whether many are acked at once.
    pub multiple: bool,
}

/// The task: anything, of which nothing is looked at. The same that Garenne's `bench.noop` decodes.
#[derive(Debug, Deserialize, Serialize)]
pub struct Noop {}

impl Orders {
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

/// Says that every task is done.
pub fn done() {
    println!("done");
    let _ = std::io::stdout().flush();
}

/// Tasks still to do; for handlers that are told of one task each.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// So many are to be counted.
pub fn expect(count: usize) {
    LEFT.store(count, Ordering::Relaxed);
}

/// Counts one, and says so when it was the last.
pub fn count() {
    if LEFT.fetch_sub(1, Ordering::Relaxed) == 1 {
        done();
    }
}
