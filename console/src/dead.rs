//! `garenne dead`: what died and why, and the way back to work.
//!
//! Looking holds every letter unacknowledged on one channel and hands all of them back at its end:
//! nothing is removed, the order stays, and no limit counts it.

mod account;
mod cli;
mod copy;
mod filter;
mod letter;
mod moves;
mod view;
mod walk;

use std::collections::HashMap;

use garenne_common::exit::{Exit, Failure};

use lapin::message::Delivery;
use tokio_util::sync::CancellationToken;

pub use account::{Kept, Moved};
pub use cli::DeadVerb;
pub use filter::{Filter, FilterArgs, PatternError};
pub use letter::Letter;
pub use moves::{Mover, Order};
pub use walk::{Finished, Walk, WalkError};

use crate::{operator::Operator, output, progress};
use cli::{ListArgs, MoveArgs, ShowArgs};

/// Runs a verb.
///
/// # Errors
/// One line and an exit code.
pub async fn run(operator: &Operator, verb: DeadVerb) -> Result<Exit, Failure> {
    match verb {
        DeadVerb::List(args) => list(operator, &args).await,
        DeadVerb::Show(args) => show(operator, &args).await,
        DeadVerb::Replay(args) => moves(operator, &args, Order::Replay).await,
        DeadVerb::Drop { yes, moves: args } => {
            args.selection()?;
            if !yes && !args.dry_run {
                return Err(Failure::new(
                    Exit::Usage,
                    "dropped letters are gone for good: look with --dry-run, then repeat with --yes",
                ));
            }
            moves(operator, &args, Order::Drop).await
        }
    }
}

/// Reads the matching letters and keeps what `keep` makes of each; all are back in the queue when this
/// returns.
async fn matching<T>(
    operator: &Operator,
    filter: &Filter,
    keep: impl Fn(Letter, Delivery) -> T,
) -> Result<(Vec<T>, u64), Failure> {
    let connection = operator.connect().await?;
    let mut walk = Walk::start(&connection, &operator.names.dead()).await?;
    let bar = progress::bar(walk.total(), "looking");
    let now = std::time::SystemTime::now();
    let mut letters = Vec::new();
    while let Some(delivery) = walk.next().await? {
        bar.inc(1);
        let letter = Letter::read(&delivery);
        if filter.takes(&letter, now) {
            letters.push(keep(letter, delivery));
        }
    }
    let looked = walk.seen();
    walk.finish().await?;
    Operator::leave(connection).await;
    bar.finish_and_clear();
    Ok((letters, looked))
}

/// The same in order of their deaths, without what they carry.
async fn letters(operator: &Operator, filter: &Filter) -> Result<(Vec<Letter>, u64), Failure> {
    let (mut letters, looked) = matching(operator, filter, |letter, _| letter).await?;
    letters.sort_by_key(|letter| letter.died_at);
    Ok((letters, looked))
}

/// Why each task in the dead-letter queue is there, by id. Looking costs nothing.
///
/// # Errors
/// One line and an exit code.
pub async fn reasons(operator: &Operator) -> Result<HashMap<String, String>, Failure> {
    let reason = |letter: Letter, _| Some((letter.id?, letter.reason));
    let (reasons, _) = matching(operator, &Filter::default(), reason).await?;
    Ok(reasons.into_iter().flatten().collect())
}

async fn list(operator: &Operator, args: &ListArgs) -> Result<Exit, Failure> {
    let (letters, looked) = letters(operator, &args.filter.filter()?).await?;
    if args.json {
        output::json(&view::json_lines(&letters, args.limit))?;
    } else {
        output::lines(&view::list(&letters, looked, args.limit.unwrap_or(view::LISTED)))?;
    }
    Ok(Exit::Done)
}

async fn show(operator: &Operator, args: &ShowArgs) -> Result<Exit, Failure> {
    let filter = Filter::of_ids(args.ids.iter().cloned());
    let (letters, looked) = matching(operator, &filter, |letter, delivery| (letter, delivery)).await?;
    if letters.is_empty() {
        let ids = args.ids.join(", ");
        return Err(Failure::new(Exit::Failed, format_args!("no dead letter {ids} among {looked}")));
    }
    if args.json {
        output::json(&view::show_json(&letters))?;
    } else {
        output::lines(&view::show(&letters))?;
    }
    Ok(Exit::Done)
}

async fn moves(operator: &Operator, args: &MoveArgs, order: Order) -> Result<Exit, Failure> {
    let filter = args.selection()?;
    if args.dry_run {
        let (mut letters, looked) = letters(operator, &filter).await?;
        letters.truncate(args.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX)));
        output::lines(&view::list(&letters, looked, view::LISTED))?;
        output::note(format_args!("dry run: {} would be {}", letters.len(), order.done()));
        return Ok(Exit::Done);
    }
    let stop = CancellationToken::new();
    let (limit, rate, hold) = (args.limit, args.rate, Mover::HOLD);
    let mover = Mover { operator, filter, order, limit, rate, hold, stop: stop.clone() };
    let moved = tokio::select! {
        moved = mover.run() => moved?,
        failure = moves::interrupted_twice(stop) => return Err(failure),
    };
    let names = &operator.names;
    moved.remarks(order.done(), &names.dead(), &names.tasks()).into_iter().for_each(output::note);
    output::lines(&format!("{} {} of {} dead letters looked at\n", order.done(), moved.moved, moved.looked))?;
    Ok(if moved.is_complete() { Exit::Done } else { Exit::Failed })
}
