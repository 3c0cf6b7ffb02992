//! The command line of `garenne dead`.

use clap::{Args, Subcommand};
use garenne_common::exit::{Exit, Failure};

use super::filter::{Filter, FilterArgs};

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
    /// before its letter goes. Exit code 1 where a letter that matched is still there
    #[command(after_help = "Examples:\n  garenne dead replay --id 0198c5c2-…\n  \
                            garenne dead replay --kind alert.notify --error timeout --older-than 1h --rate 50 --dry-run\n  \
                            garenne dead replay --all     # also what was stopped")]
    Replay(MoveArgs),
    /// Remove letters for good
    #[command(after_help = "Examples:\n  garenne dead drop --reason malformed --older-than 7d --yes\n  \
                            garenne dead drop --all --yes")]
    Drop {
        /// Yes, they may be gone for good
        #[arg(long)]
        yes: bool,
        /// Which, how many, how fast.
        #[command(flatten)]
        moves: MoveArgs,
    },
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
    /// Task ids, exactly or as they are shown
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
    /// Every letter, whatever its kind and reason
    #[arg(long)]
    pub all: bool,
    /// Only show what would be done
    #[arg(long)]
    pub dry_run: bool,
    /// At most this many a second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    /// At most this many
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
}

impl MoveArgs {
    /// The letters that were chosen, one way or the other.
    ///
    /// # Errors
    /// Nothing was chosen, or everything and a part of it, or a reason is unknown.
    pub fn selection(&self) -> Result<Filter, Failure> {
        let problem = match (self.all, self.filter.is_empty()) {
            (false, true) => {
                "no letters are selected: give --kind, --reason, --error, --older-than, --newer-than or --id, or --all"
            }
            (true, false) => "--all and a selection contradict each other: give one of them",
            _ => return Ok(self.filter.filter()?),
        };
        Err(Failure::new(Exit::Usage, problem))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_moved_by_an_explicit_choice_only() {
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
        let none = "no letters are selected: give --kind, --reason, --error, --older-than, --newer-than or --id, or --all";
        assert_eq!(choice(false, &[]), Err((Exit::Usage, none.to_owned())));
        let both = "--all and a selection contradict each other: give one of them";
        assert_eq!(choice(true, &["reading.#"]), Err((Exit::Usage, both.to_owned())));
    }
}
