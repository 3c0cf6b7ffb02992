//! `garenne dead`: lists, shows, replays and drops dead letters.
//!
//! Reading holds every dead letter unacknowledged on one channel and requeues all of them at the end: nothing is
//! removed, the order is kept, and the queue has no delivery limit.

mod cli;
mod copy;
mod dead_letter;
mod filter;
mod mover;
mod queue_walk;
mod report;
mod view;

use std::{
    collections::{BTreeMap, HashMap},
    time::SystemTime,
};

use garenne_common::exit::{Exit, Failure};
use indicatif::ProgressBar;
use lapin::message::Delivery;

pub use cli::DeadVerb;
pub use dead_letter::DeadLetter;
pub use filter::{Filter, FilterArgs};
pub use mover::{MoveAction, Mover};
pub use queue_walk::{Finished, QueueWalk};
pub use report::{FailedLetters, MoveReport};

use crate::{operator::Operator, output, progress};
use cli::{ListArgs, MoveArgs, ShowArgs};

/// Runs `garenne dead …`.
///
/// # Errors
/// One line and an exit code.
pub async fn run(operator: &Operator, verb: DeadVerb) -> Result<Exit, Failure> {
    match verb {
        DeadVerb::List(args) => list(operator, &args).await,
        DeadVerb::Show(args) => show(operator, &args).await,
        DeadVerb::Replay(args) => move_dead_letters(operator, &args, MoveAction::Replay).await,
        DeadVerb::Drop { yes, args } => {
            args.selection()?;
            if !yes && !args.dry_run {
                return Err(Failure::new(
                    Exit::Usage,
                    "drop removes dead letters permanently: check with --dry-run, then repeat with --yes",
                ));
            }
            move_dead_letters(operator, &args, MoveAction::Drop).await
        }
    }
}

/// Reads at most `max` dead letters, oldest first. Returns those that `keep` returns, and the number read. All of
/// them are back in the queue when this returns.
pub(crate) async fn read<T>(
    operator: &Operator,
    max: u64,
    bar: &ProgressBar,
    mut keep: impl FnMut(DeadLetter, Delivery) -> Option<T>,
) -> Result<(Vec<T>, u64), Failure> {
    let connection = operator.connect().await?;
    let mut walk = QueueWalk::start(&connection, &operator.names.dead(), max).await?;
    bar.set_length(walk.total());
    let mut letters = Vec::new();
    while let Some(delivery) = walk.next().await? {
        bar.inc(1);
        letters.extend(keep(DeadLetter::read(&delivery), delivery));
    }
    let read = walk.read();
    walk.finish().await?;
    Operator::leave(connection).await;
    bar.finish_and_clear();
    Ok((letters, read))
}

/// All matching dead letters, mapped by `keep`, and the number read.
async fn matching<T>(
    operator: &Operator,
    filter: &Filter,
    keep: impl Fn(DeadLetter, Delivery) -> T,
) -> Result<(Vec<T>, u64), Failure> {
    let now = SystemTime::now();
    let bar = progress::bar(0, "reading");
    read(operator, u64::MAX, &bar, |letter, delivery| {
        filter.matches(&letter, now).then(|| keep(letter, delivery))
    })
    .await
}

/// Counts dead letters by kind and reason.
pub(crate) fn counts(letters: &[DeadLetter]) -> BTreeMap<(&str, &str), u64> {
    let mut counts = BTreeMap::new();
    for letter in letters {
        *counts.entry((letter.kind.as_str(), letter.reason.as_str())).or_default() += 1;
    }
    counts
}

/// The matching dead letters without their payloads, oldest first.
async fn letters(operator: &Operator, filter: &Filter) -> Result<(Vec<DeadLetter>, u64), Failure> {
    let (mut letters, read) = matching(operator, filter, |letter, _| letter).await?;
    letters.sort_by_key(|letter| letter.died_at);
    Ok((letters, read))
}

/// The reason of each task in the dead-letter queue, by id.
///
/// # Errors
/// One line and an exit code.
pub async fn reasons(operator: &Operator) -> Result<HashMap<String, String>, Failure> {
    let reason = |letter: DeadLetter, _| Some((letter.id?, letter.reason));
    let (reasons, _) = matching(operator, &Filter::default(), reason).await?;
    Ok(reasons.into_iter().flatten().collect())
}

async fn list(operator: &Operator, args: &ListArgs) -> Result<Exit, Failure> {
    let (letters, read) = letters(operator, &args.filter.filter()?).await?;
    if args.json {
        output::json(&view::json_lines(&letters, args.limit))?;
    } else {
        output::lines(&view::list(&letters, read, args.limit.unwrap_or(view::DEFAULT_LIMIT)))?;
    }
    Ok(Exit::Done)
}

async fn show(operator: &Operator, args: &ShowArgs) -> Result<Exit, Failure> {
    let filter = Filter::of_ids(&args.ids);
    let (letters, read) = matching(operator, &filter, |letter, delivery| (letter, delivery)).await?;
    if letters.is_empty() {
        let ids = args.ids.join(", ");
        return Err(Failure::new(Exit::Failed, format_args!("no dead letter with id {ids} among {read}")));
    }
    if args.json {
        output::json(&view::show_json(&letters))?;
    } else {
        output::lines(&view::show(&letters))?;
    }
    Ok(Exit::Done)
}

async fn move_dead_letters(
    operator: &Operator,
    args: &MoveArgs,
    action: MoveAction,
) -> Result<Exit, Failure> {
    let filter = args.selection()?;
    if args.dry_run {
        let (mut letters, read) = letters(operator, &filter).await?;
        letters.truncate(args.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX)));
        output::lines(&view::list(&letters, read, view::DEFAULT_LIMIT))?;
        output::note(format_args!("dry run: {} would be {}", letters.len(), action.done()));
        return Ok(Exit::Done);
    }
    let mover = Mover { limit: args.limit, rate: args.rate, ..Mover::new(operator, filter, action) };
    let moved = tokio::select! {
        moved = mover.run() => moved?,
        failure = mover::interrupted_twice(&mover.stop) => return Err(failure),
    };
    let names = &operator.names;
    moved.remarks(action.done(), &names.dead(), &names.tasks()).into_iter().for_each(output::note);
    output::lines(&format!("{} {} of {} dead letters\n", action.done(), moved.moved, moved.read))?;
    Ok(if moved.is_complete() { Exit::Done } else { Exit::Failed })
}
