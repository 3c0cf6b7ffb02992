//! The command line of `garenne dead`.

use clap::{Args, Subcommand};
use garenne_common::exit::{Exit, Failure};

use super::filter::{Filter, FilterArgs};

/// `garenne dead …`.
#[derive(Clone, Debug, Subcommand)]
pub enum DeadVerb {
    /// List dead letters, newest last, with counts by kind and reason
    #[command(after_help = "Examples:\n  garenne dead list\n  \
                            garenne dead list --kind 'reading.#' --reason conflict --json | jq .error")]
    List(ListArgs),
    /// Show dead letters with headers, error and payload
    #[command(after_help = "Example:\n  garenne dead show 0198c5c2-…")]
    Show(ShowArgs),
    /// Publish dead letters as tasks again; exits with 1 if a matching dead letter remains
    ///
    /// Attempts are reset and earlier stop directives are overridden. Each copy is confirmed before its dead letter is
    /// removed.
    #[command(after_help = "Examples:\n  garenne dead replay --id 0198c5c2-…\n  \
                            garenne dead replay --kind alert.notify --error timeout --older-than 1h --rate 50 --dry-run\n  \
                            garenne dead replay --all     # includes stopped tasks")]
    Replay(MoveArgs),
    /// Remove dead letters permanently
    #[command(after_help = "Examples:\n  garenne dead drop --reason malformed --older-than 7d --yes\n  \
                            garenne dead drop --all --yes")]
    Drop {
        /// Confirm that the dead letters are removed permanently
        #[arg(long)]
        yes: bool,
        /// Selection and limits.
        #[command(flatten)]
        args: MoveArgs,
    },
}

/// `garenne dead list`.
#[derive(Args, Clone, Debug, Default)]
pub struct ListArgs {
    /// Filter.
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Print one JSON object per line, for all dead letters unless --limit is given
    #[arg(long)]
    pub json: bool,
    /// List the newest N only [default: 50]
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
}

/// `garenne dead show`.
#[derive(Args, Clone, Debug, Default)]
pub struct ShowArgs {
    /// Task ids, exact or as displayed
    #[arg(value_name = "ID", required = true)]
    pub ids: Vec<String>,
    /// Print one JSON object per line; a payload that is not JSON is base64
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `replay` and `drop`.
#[derive(Args, Clone, Debug, Default)]
pub struct MoveArgs {
    /// Filter.
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Every dead letter
    #[arg(long)]
    pub all: bool,
    /// Show what would be moved, without moving it
    #[arg(long)]
    pub dry_run: bool,
    /// Maximum per second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    /// Maximum number
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
}

impl MoveArgs {
    /// The filter for the selected dead letters.
    ///
    /// # Errors
    /// Nothing is selected, `--all` is combined with a filter, or a reason is unknown.
    pub fn selection(&self) -> Result<Filter, Failure> {
        let problem = match (self.all, self.filter.is_empty()) {
            (false, true) => {
                "no dead letters are selected: set --kind, --reason, --error, --older-than, --newer-than, --id or --all"
            }
            (true, false) => "--all cannot be combined with a filter",
            _ => return self.filter.filter(),
        };
        Err(Failure::new(Exit::Usage, problem))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moving_dead_letters_needs_an_explicit_selection() {
        let choice = |all, kind: &[&str]| {
            let filter =
                FilterArgs { kind: kind.iter().map(ToString::to_string).collect(), ..FilterArgs::default() };
            MoveArgs { all, filter, ..MoveArgs::default() }
                .selection()
                .map(drop)
                .map_err(|it| (it.exit, it.line))
        };
        assert_eq!(choice(true, &[]), Ok(()));
        assert_eq!(choice(false, &["reading.#"]), Ok(()));
        let none = "no dead letters are selected: set --kind, --reason, --error, --older-than, --newer-than, --id or --all";
        assert_eq!(choice(false, &[]), Err((Exit::Usage, none.to_owned())));
        let both = "--all cannot be combined with a filter";
        assert_eq!(choice(true, &["reading.#"]), Err((Exit::Usage, both.to_owned())));
    }
}
