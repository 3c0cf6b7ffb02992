//! `garenne unroutable`: lists, replays and drops the messages that no lane's bindings matched.

use std::time::Duration;

use clap::{Args, Subcommand};
use garenne_common::exit::{Exit, Failure};

use crate::{
    args::duration,
    dead::{self, Filter, HeldQueue, ListOptions, MoveAction, MoveOptions},
    operator::Operator,
};

/// `garenne unroutable …`.
#[derive(Clone, Debug, Subcommand)]
pub enum UnroutableVerb {
    /// List the newest unroutable messages, newest last, with counts by kind
    #[command(after_help = "Example:\n  garenne unroutable list --kind 'import.#' --json | jq .routing_key")]
    List {
        /// Selection.
        #[command(flatten)]
        selection: Selection,
        /// Form and size of the list.
        #[command(flatten)]
        options: ListOptions,
    },
    /// Publish unroutable messages again; exits with 1 if a matching one remains
    ///
    /// Each copy goes to the tasks exchange with its routing key, and is confirmed before its original is removed. A
    /// message whose routing key no lane of the settings takes remains: it would return to the queue.
    #[command(
        after_help = "Examples:\n  garenne unroutable replay --kind 'import.#' --config fleet.toml --dry-run\n  \
                            garenne unroutable replay --all --config fleet.toml"
    )]
    Replay {
        /// Selection.
        #[command(flatten)]
        selection: Selection,
        /// Limits.
        #[command(flatten)]
        options: MoveOptions,
    },
    /// Remove unroutable messages permanently
    #[command(after_help = "Example:\n  garenne unroutable drop --kind 'old.#' --older-than 7d --yes")]
    Drop {
        /// Confirm that the messages are removed permanently
        #[arg(long)]
        yes: bool,
        /// Selection.
        #[command(flatten)]
        selection: Selection,
        /// Limits.
        #[command(flatten)]
        options: MoveOptions,
    },
}

/// Conditions on unroutable messages. All of them must hold; of a repeated one, any value.
#[derive(Args, Clone, Debug, Default)]
pub struct Selection {
    /// Kind, or a binding pattern such as `import.#`; repeatable
    #[arg(long, value_name = "KIND")]
    pub kind: Vec<String>,
    /// Exactly this kind, even if it looks like a pattern: publishers choose kinds
    #[arg(long, value_name = "KIND")]
    pub exact_kind: Option<String>,
    /// Group of the task; repeatable
    #[arg(long, value_name = "NAME")]
    pub group: Vec<String>,
    /// Published at least this long ago, by its publisher's clock
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub older_than: Option<Duration>,
    /// Published at most this long ago, by its publisher's clock
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub newer_than: Option<Duration>,
    /// Task id, exact or as displayed; repeatable
    #[arg(long, value_name = "ID")]
    pub id: Vec<String>,
}

impl Selection {
    fn filter(self) -> Filter {
        let Self { kind, exact_kind, group, older_than, newer_than, id } = self;
        Filter { kind, exact_kind, group, older_than, newer_than, id, ..Filter::default() }
    }

    /// The filter of a move, for which something must be selected explicitly.
    fn selected(self, options: &MoveOptions) -> Result<Filter, Failure> {
        let flags = "--kind, --exact-kind, --group, --older-than, --newer-than, --id or --all";
        let filter = self.filter();
        options.selected(HeldQueue::Unroutable, &filter, flags)?;
        Ok(filter)
    }
}

/// Runs `garenne unroutable …`.
///
/// # Errors
/// One line and an exit code.
pub async fn run(operator: &Operator, verb: UnroutableVerb) -> Result<Exit, Failure> {
    let queue = HeldQueue::Unroutable;
    match verb {
        UnroutableVerb::List { selection, options } => {
            dead::list(operator, queue, &selection.filter(), &options).await
        }
        UnroutableVerb::Replay { selection, options } => {
            let filter = selection.selected(&options)?;
            dead::move_selected(operator, queue, &filter, &options, MoveAction::Replay).await
        }
        UnroutableVerb::Drop { yes, selection, options } => {
            let filter = selection.selected(&options)?;
            options.confirmed(queue, yes)?;
            dead::move_selected(operator, queue, &filter, &options, MoveAction::Drop).await
        }
    }
}
