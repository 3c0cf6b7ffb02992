//! `garenne unroutable`: lists, replays and drops the messages that no lane's bindings matched.

use clap::Subcommand;
use garenne_common::exit::{Exit, Failure};
use garenne_operator::{dead::HeldQueue, operator::Operator};

use crate::dead::{self, Conditions, Filter, ListOptions, MoveAction, MoveOptions};

/// `garenne unroutable …`.
#[derive(Clone, Debug, Subcommand)]
pub enum UnroutableVerb {
    /// List the newest unroutable messages, newest last, with counts by kind
    ///
    /// Their time is that of their publication, by the publisher's clock.
    #[command(after_help = "Example:\n  garenne unroutable list --kind 'import.#' --json | jq .routing_key")]
    List {
        /// Selection.
        #[command(flatten)]
        conditions: Conditions,
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
        conditions: Conditions,
        /// Limits.
        #[command(flatten)]
        options: MoveOptions,
    },
    /// Remove unroutable messages permanently
    #[command(after_help = "Example:\n  garenne unroutable drop --kind 'old.#' --older-than 7d --yes")]
    Drop {
        /// Confirm that the messages are removed permanently [default: ask]
        #[arg(long)]
        yes: bool,
        /// Selection.
        #[command(flatten)]
        conditions: Conditions,
        /// Limits.
        #[command(flatten)]
        options: MoveOptions,
    },
}

/// The filter of a move, for which something must be selected explicitly.
fn selected(conditions: Conditions, options: &MoveOptions) -> Result<Filter, Failure> {
    let flags = "--kind, --exact-kind, --group, --older-than, --newer-than, --id or --all";
    let filter = conditions.into();
    options.selected(HeldQueue::Unroutable, &filter, flags)?;
    Ok(filter)
}

/// Runs `garenne unroutable …`.
pub async fn run(operator: &Operator, verb: UnroutableVerb) -> Result<Exit, Failure> {
    let queue = HeldQueue::Unroutable;
    match verb {
        UnroutableVerb::List { conditions, options } => {
            dead::list(operator, queue, &conditions.into(), &options).await
        }
        UnroutableVerb::Replay { conditions, options } => {
            let filter = selected(conditions, &options)?;
            dead::move_selected(operator, queue, &filter, &options, MoveAction::Replay).await
        }
        UnroutableVerb::Drop { yes, conditions, options } => {
            let filter = selected(conditions, &options)?;
            options.confirmed(queue, yes)?;
            dead::move_selected(operator, queue, &filter, &options, MoveAction::Drop).await
        }
    }
}
