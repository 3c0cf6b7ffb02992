//! `garenne dead`: what died and why, and the way back to work.
//!
//! Looking holds every letter unacknowledged on one channel and hands all of them back at its end:
//! nothing is removed, the order stays, and no limit counts it.

pub mod cli;
mod filter;
mod letter;
mod moves;
mod view;
mod walk;

use std::collections::HashMap;

use garenne_common::exit::{Exit, Failure};

pub use cli::FilterArgs;
pub use filter::{Filter, PatternError};
pub use letter::Letter;
pub use moves::{Moved, Mover, Order};
pub use walk::{Walk, WalkError};

use crate::{operator::Operator, progress};
use cli::{DeadVerb, ListArgs, MoveArgs, ShowArgs};

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

/// Reads the matching letters; all are back in the queue when this returns.
async fn matching(operator: &Operator, filter: &Filter) -> Result<(Vec<Letter>, u64), Failure> {
    let connection = operator.connect().await?;
    let mut walk = Walk::start(&connection, &operator.names.dead()).await?;
    let bar = progress::bar(walk.total(), "looking");
    let now = std::time::SystemTime::now();
    let mut letters = Vec::new();
    while let Some(delivery) = walk.next().await? {
        bar.inc(1);
        let letter = Letter::read(&delivery);
        if filter.takes(&letter, now) {
            letters.push(letter);
        }
    }
    let looked = walk.seen();
    walk.finish().await?;
    Operator::leave(connection).await;
    bar.finish_and_clear();
    Ok((letters, looked))
}

/// Why each task in the dead-letter queue is there, by id. Looking costs nothing.
///
/// # Errors
/// One line and an exit code.
pub async fn reasons(operator: &Operator) -> Result<HashMap<String, String>, Failure> {
    let (letters, _) = matching(operator, &Filter::default()).await?;
    Ok(letters.into_iter().filter_map(|letter| Some((letter.id?, letter.reason))).collect())
}

async fn list(operator: &Operator, args: &ListArgs) -> Result<Exit, Failure> {
    let (mut letters, looked) = matching(operator, &args.filter.filter()?).await?;
    letters.sort_by_key(|letter| letter.died_at);
    let text = if args.json {
        view::json_lines(&letters, args.limit)
    } else {
        view::list(&letters, looked, args.limit.unwrap_or(view::LISTED))
    };
    print(&text)
}

async fn show(operator: &Operator, args: &ShowArgs) -> Result<Exit, Failure> {
    let filter = Filter::of_ids(args.ids.iter().cloned());
    let (letters, looked) = matching(operator, &filter).await?;
    if letters.is_empty() {
        let ids = args.ids.join(", ");
        return Err(Failure::new(Exit::Failed, format_args!("no dead letter {ids} among {looked}")));
    }
    print(&view::show(&letters, args.json))
}

/// Writes results; a reader that has seen enough (`| head`) is no failure.
fn print(text: &str) -> Result<Exit, Failure> {
    use std::io::{ErrorKind, Write};
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(anyhow::Error::from(error).into()),
        _ => Ok(Exit::Done),
    }
}

async fn moves(operator: &Operator, args: &MoveArgs, order: Order) -> Result<Exit, Failure> {
    let filter = args.filter.filter()?;
    if args.dry_run {
        let (mut letters, looked) = matching(operator, &filter).await?;
        letters.sort_by_key(|letter| letter.died_at);
        letters.truncate(args.limit.unwrap_or(usize::MAX));
        print(&view::list(&letters, looked, view::LISTED))?;
        eprintln!("dry run: {} would be {}", letters.len(), order.done());
        return Ok(Exit::Done);
    }
    let mover = Mover { operator, filter, order, limit: args.limit, rate: args.rate };
    let moved = mover.run().await?;
    for (reason, count) in &moved.failures {
        eprintln!("{count} not {}: {reason}", order.done());
    }
    println!("{} {} of {} dead letters looked at", order.done(), moved.moved, moved.looked);
    Ok(if moved.failures.is_empty() { Exit::Done } else { Exit::Failed })
}
