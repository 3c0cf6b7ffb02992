//! The command line of `garenne dead`.

use std::time::Duration;

use clap::{Args, Subcommand};
use garenne_common::exit::{Exit, Failure};
use garenne_operator::dead::HeldQueue;
use serde_json::{Value, json};

use super::{
    edit::EditArgs,
    filter::{Conditions, Filter},
    listing::Page,
    view::DEFAULT_LIMIT,
};
use crate::confirm::confirm;

/// `garenne dead …`.
#[derive(Clone, Debug, Subcommand)]
pub enum DeadVerb {
    /// List the newest dead letters, newest last, with counts by kind and reason
    #[command(after_help = "Examples:\n  garenne dead list\n  \
                            garenne dead list --kind 'reading.#' --reason conflict --json | jq .error\n  \
                            garenne dead list --limit 100 --page 2")]
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
    /// Publish a dead letter with another payload under a new id
    ///
    /// Of several letters with the id, the newest. It is removed after the broker has confirmed the copy; if anything
    /// fails, it stays.
    #[command(after_help = "Example:\n  garenne dead edit 0198c5c2-… --payload corrected.json")]
    Edit(EditArgs),
    /// Remove dead letters permanently
    #[command(after_help = "Examples:\n  garenne dead drop --reason malformed --older-than 7d --yes\n  \
                            garenne dead drop --all --yes")]
    Drop {
        /// Confirm that the dead letters are removed permanently [default: ask]
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
    pub filter: Filter,
    /// Form and size of the list.
    #[command(flatten)]
    pub options: ListOptions,
}

/// Form and size of a list.
#[derive(Args, Clone, Debug, Default)]
pub struct ListOptions {
    /// Print one JSON object per line, for all of them unless --limit is given
    #[arg(long)]
    pub json: bool,
    /// List the newest N only [default: 50]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub limit: Option<usize>,
    /// Page of N; page 2 has the next older ones [default: 1]
    #[arg(long, value_name = "PAGE", value_parser = positive)]
    pub page: Option<usize>,
}

impl ListOptions {
    pub(super) fn page(&self) -> Page {
        match (self.limit, self.page) {
            (None, None) if self.json => Page::ALL,
            (size, number) => Page { number: number.unwrap_or(1), size: size.unwrap_or(DEFAULT_LIMIT) },
        }
    }
}

/// A whole number above 0.
fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("expected a whole number from 1".to_owned()),
        Ok(number) => Ok(number),
    }
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
    pub filter: Filter,
    /// Limits.
    #[command(flatten)]
    pub options: MoveOptions,
}

impl MoveArgs {
    /// The filter for the selected dead letters.
    pub fn selection(&self) -> Result<&Filter, Failure> {
        let flags = "--kind, --exact-kind, --reason, --error, --error-like, --text, --group, --older-than, --newer-than, --id or --all";
        self.options.selected(HeldQueue::Dead, &self.filter, flags)?;
        self.filter.check()
    }
}

/// Whether everything is selected, and limits.
#[derive(Args, Clone, Debug, Default)]
pub struct MoveOptions {
    /// Every one
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

impl MoveOptions {
    /// The selection as the record of a command names it.
    pub(super) fn record(&self, filter: &Filter) -> Value {
        let Filter { conditions, reason, error, error_like, text } = filter;
        let Conditions { kind, exact_kind, group, older_than, newer_than, id } = conditions;
        let time = |time: &Option<Duration>| time.map(|time| humantime::format_duration(time).to_string());
        json!({
            "all": self.all, "kind": kind, "exact_kind": exact_kind, "reason": reason, "error": error, "error_like": error_like, "text": text,
            "group": group, "id": id, "older_than": time(older_than), "newer_than": time(newer_than),
            "limit": self.limit,
        })
    }

    /// Checks that something is selected explicitly. `flags` are those that select. Fails if `--all` is combined with
    /// a filter.
    pub(crate) fn selected(&self, queue: HeldQueue, filter: &Filter, flags: &str) -> Result<(), Failure> {
        match (self.all, filter.is_empty()) {
            (false, true) => {
                let problem = format!("no {} are selected: set {flags}", queue.noun());
                Err(Failure::new(Exit::Usage, problem))
            }
            (true, false) => Err(Failure::new(Exit::Usage, "--all cannot be combined with a filter")),
            _ => Ok(()),
        }
    }

    /// Checks that a drop is confirmed or a dry run.
    pub(crate) fn confirmed(&self, queue: HeldQueue, yes: bool) -> Result<(), Failure> {
        let consequence = format!("drop removes {} permanently", queue.noun());
        confirm(&consequence, "check with --dry-run, then repeat with --yes", yes || self.dry_run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moving_dead_letters_needs_an_explicit_selection() {
        let choice = |all, kind: &[&str]| {
            let kind = kind.iter().map(ToString::to_string).collect();
            let filter = Conditions { kind, ..Conditions::default() }.into();
            MoveArgs { filter, options: MoveOptions { all, ..MoveOptions::default() } }
                .selection()
                .map(drop)
                .map_err(|it| (it.exit, it.line))
        };
        assert_eq!(choice(true, &[]), Ok(()));
        assert_eq!(choice(false, &["reading.#"]), Ok(()));
        let none = "no dead letters are selected: set --kind, --exact-kind, --reason, --error, --error-like, --text, \
                    --group, --older-than, --newer-than, --id or --all";
        assert_eq!(choice(false, &[]), Err((Exit::Usage, none.to_owned())));
        let both = "--all cannot be combined with a filter";
        assert_eq!(choice(true, &["reading.#"]), Err((Exit::Usage, both.to_owned())));
    }

    #[test]
    fn a_json_list_without_limits_has_everything() {
        let page = |json, limit, page| ListOptions { json, limit, page }.page();
        assert_eq!(page(true, None, None), Page::ALL);
        assert_eq!(page(true, None, Some(3)), Page { number: 3, size: DEFAULT_LIMIT });
        assert_eq!(page(false, None, None), Page { number: 1, size: DEFAULT_LIMIT });
        assert_eq!(page(false, Some(7), Some(2)), Page { number: 2, size: 7 });
        assert_eq!(positive("0").unwrap_err(), "expected a whole number from 1");
    }
}
