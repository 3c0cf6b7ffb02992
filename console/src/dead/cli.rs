//! The command line of `garenne dead`.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::filter::{Filter, PatternError};
use crate::cli::span;

/// `garenne dead …`.
#[derive(Clone, Debug, Subcommand)]
pub enum DeadVerb {
    /// What died, newest last, and how many of each kind and reason
    #[command(after_help = "Examples:\n  garenne dead list\n  \
                            garenne dead list --kind 'reading.#' --reason conflict --json | jq .error")]
    List(ListArgs),
    /// Everything about some letters: headers, error, payload
    #[command(after_help = "Example:\n  garenne dead show 0198c5c2-…")]
    Show(ShowArgs),
    /// Send letters back to work, attempts reset and earlier stop orders overruled; each copy is confirmed
    /// before its letter goes
    #[command(after_help = "Examples:\n  garenne dead replay --id 0198c5c2-…\n  \
                            garenne dead replay --kind alert.notify --error timeout --older-than 1h --rate 50 --dry-run")]
    Replay(MoveArgs),
    /// Remove letters for good
    #[command(after_help = "Example:\n  garenne dead drop --reason malformed --older-than 7d --yes")]
    Drop {
        /// Yes, they may be gone for good
        #[arg(long)]
        yes: bool,
        /// Which, how many, how fast.
        #[command(flatten)]
        moves: MoveArgs,
    },
}

/// Which letters: all conditions must hold; of one repeated, any.
#[derive(Args, Clone, Debug, Default)]
pub struct FilterArgs {
    /// Kind, or a pattern as in bindings (`reading.#`); repeatable
    #[arg(long, value_name = "KIND")]
    pub kind: Vec<String>,
    /// Reason, such as attempts-exhausted, conflict, or the broker's own; repeatable
    #[arg(long, value_name = "REASON")]
    pub reason: Vec<String>,
    /// Died at least this long ago
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub older_than: Option<Duration>,
    /// Died at most this long ago
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub newer_than: Option<Duration>,
    /// The error contains this text, in any case
    #[arg(long, value_name = "TEXT")]
    pub error: Option<String>,
    /// Task id; repeatable
    #[arg(long, value_name = "ID")]
    pub id: Vec<String>,
}

impl FilterArgs {
    /// The filter they describe.
    ///
    /// # Errors
    /// A reason nobody gives.
    pub fn filter(&self) -> Result<Filter, PatternError> {
        Filter::new(self)
    }
}

/// `garenne dead list`.
#[derive(Args, Clone, Debug, Default)]
pub struct ListArgs {
    /// Which.
    #[command(flatten)]
    pub filter: FilterArgs,
    /// One JSON object a line, all of them unless --limit says otherwise
    #[arg(long)]
    pub json: bool,
    /// How many to list [default: the newest 50]
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
}

/// `garenne dead show`.
#[derive(Args, Clone, Debug, Default)]
pub struct ShowArgs {
    /// Task ids
    #[arg(value_name = "ID", required = true)]
    pub ids: Vec<String>,
    /// One JSON object a line, the payload as base64 where it is no JSON
    #[arg(long)]
    pub json: bool,
}

/// What `replay` and `drop` share.
#[derive(Args, Clone, Debug, Default)]
pub struct MoveArgs {
    /// Which.
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Only show what would be done
    #[arg(long)]
    pub dry_run: bool,
    /// At most this many a second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    /// At most this many
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
}
