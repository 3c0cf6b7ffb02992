//! `garenne dead`: lists, shows, replays and drops dead letters.
//!
//! Reading takes every dead letter and returns all of them at the end (`queues::QueueWalk`): nothing is removed, the order
//! is kept, and the queue has no delivery limit.
//!
//! `garenne unroutable` does the same with the queue of unroutable messages, through `list` and `move_selected`.

mod cli;
mod copy;
mod edit;
mod error_pattern;
mod filter;
mod listing;
mod move_progress;
mod mover;
mod report;
mod view;

use std::time::SystemTime;

use garenne_amqp::{Message, PublishError, Publisher, PublisherConfig, Target};
use garenne_common::exit::{Exit, Failure};
use garenne_operator::{
    dead::{DeadLetter, HeldQueue},
    interrupt::Interrupts,
    operator::Operator,
    output,
    queues::QueueWalk,
};
use indicatif::ProgressBar;
use lapin::{BasicProperties, message::Delivery};
use uuid::Uuid;

pub use cli::DeadVerb;
pub use filter::{Conditions, Filter};
pub use move_progress::{MoveCounts, MoveProgress};
pub use mover::{MoveAction, Mover};
pub use report::{FailedLetters, MoveReport};

use crate::{
    audit_log::{audited, command_line},
    progress,
};
use cli::ShowArgs;
pub(crate) use cli::{ListOptions, MoveOptions};
use copy::UnboundLanes;
pub(crate) use edit::{EDIT, edit_record, replay_edited};
pub(crate) use listing::{Listing, Page};
pub(crate) use view::shown_letter;

/// All messages of a queue.
const ALL: u64 = u64::MAX;

/// Runs `garenne dead …`.
pub async fn run(operator: &Operator, verb: DeadVerb) -> Result<Exit, Failure> {
    let queue = HeldQueue::Dead;
    match verb {
        DeadVerb::List(args) => list(operator, queue, args.filter.check()?, &args.options).await,
        DeadVerb::Show(args) => show(operator, &args).await,
        DeadVerb::Replay(args) => {
            move_selected(operator, queue, args.selection()?, &args.options, MoveAction::Replay).await
        }
        DeadVerb::Edit(args) => edit::run(operator, args).await,
        DeadVerb::Drop { yes, args } => {
            let filter = args.selection()?;
            args.options.confirmed(queue, yes)?;
            move_selected(operator, queue, filter, &args.options, MoveAction::Drop).await
        }
    }
}

/// Reads at most `max` messages of a queue in its order and passes those that match to `visit`. Returns the number
/// read. All of them are back in the queue when this returns.
pub(crate) async fn read(
    operator: &Operator,
    queue: HeldQueue,
    filter: &Filter,
    max: u64,
    bar: &ProgressBar,
    mut visit: impl FnMut(DeadLetter, Delivery),
) -> Result<u64, Failure> {
    let now = SystemTime::now();
    let connection = operator.connect().await?;
    let mut walk = QueueWalk::start(&connection, &queue.name(&operator.names), max).await?;
    bar.set_length(walk.total());
    while let Some(delivery) = walk.next().await? {
        bar.inc(1);
        let letter = queue.read(&delivery);
        if filter.matches(&letter, now) {
            visit(letter, delivery);
        }
    }
    let read = walk.read();
    walk.finish().await?;
    Operator::leave(connection).await;
    bar.finish_and_clear();
    Ok(read)
}

/// Prints a page of the matching messages, and counts of all of them.
pub(crate) async fn list(
    operator: &Operator,
    queue: HeldQueue,
    filter: &Filter,
    options: &ListOptions,
) -> Result<Exit, Failure> {
    let mut listing = Listing::new(options.page());
    let bar = progress::bar("reading");
    let read = read(operator, queue, filter, ALL, &bar, |letter, _| listing.add(letter)).await?;
    if options.json {
        output::json_lines(listing.newest_first().rev().map(|letter| view::listed_json(queue, letter)))?;
    } else {
        output::lines(&view::list(queue, &listing, read))?;
    }
    Ok(Exit::Done)
}

async fn show(operator: &Operator, args: &ShowArgs) -> Result<Exit, Failure> {
    let filter = Conditions { id: args.ids.clone(), ..Conditions::default() }.into();
    let bar = progress::bar("reading");
    let mut letters = Vec::new();
    let add = |letter, delivery| letters.push((letter, delivery));
    let read = read(operator, HeldQueue::Dead, &filter, ALL, &bar, add).await?;
    if letters.is_empty() {
        let ids = args.ids.join(", ");
        return Err(Failure::new(Exit::Failed, format_args!("no dead letter with id {ids} among {read}")));
    }
    if args.json {
        output::json_lines(letters.iter().map(view::whole_json))?;
    } else {
        output::lines(&view::show(&letters))?;
    }
    Ok(Exit::Done)
}

/// Moves the selected messages, or lists them in a dry run.
pub(crate) async fn move_selected(
    operator: &Operator,
    queue: HeldQueue,
    filter: &Filter,
    options: &MoveOptions,
    action: MoveAction,
) -> Result<Exit, Failure> {
    if options.dry_run {
        return dry_run(operator, queue, filter, options, action).await;
    }
    let all = Mover::new(operator, queue, filter.clone(), action);
    let mover = Mover { limit: options.limit, rate: options.rate, ..all };
    let mut interrupts = Interrupts::catch()?;
    let moving = async {
        tokio::select! {
            moved = mover.run() => moved,
            () = interrupts.twice(&mover.stop) => {
                let noun = queue.noun();
                let problem = format!("interrupted twice: {noun} with unconfirmed copies remain in the queue");
                Err(Failure::new(Exit::Interrupted, problem))
            }
        }
    };
    let (command, record) = (audit_name(queue, action), options.record(filter));
    let moved = audited(operator, command_line(), command, record, moving, MoveReport::record).await?;
    moved.remarks(action.done(), queue, &operator.names).into_iter().for_each(output::note);
    output::lines(&format!("{} {} of {} {}\n", action.done(), moved.moved, moved.read, queue.noun()))?;
    Ok(if moved.is_complete() { Exit::Done } else { Exit::Failed })
}

/// Lists the selected messages, and says what a move would do with them: the copies are made, and not published.
async fn dry_run(
    operator: &Operator,
    queue: HeldQueue,
    filter: &Filter,
    options: &MoveOptions,
    action: MoveAction,
) -> Result<Exit, Failure> {
    let limit = options.limit.unwrap_or(u64::MAX);
    let mut listing = Listing::new(Page { number: 1, size: view::DEFAULT_LIMIT });
    let mut predicted = MoveReport::default();
    let unbound = match action {
        MoveAction::Replay => UnboundLanes::find(operator, queue).await?,
        MoveAction::Drop => UnboundLanes::default(),
    };
    // Whether the user may publish to queues, of which the default exchange has the right, is asked once.
    let refused = match (action, queue) {
        (MoveAction::Replay, HeldQueue::Dead) => refused_by_default_exchange(operator).await?,
        _ => None,
    };
    // A move begins at the front of the queue.
    let add = |letter: DeadLetter, delivery: Delivery| {
        if listing.matched() >= limit {
            return;
        }
        let made = match action {
            MoveAction::Replay => {
                let made =
                    copy::copy(operator, queue, &unbound, &letter, &delivery.properties, delivery.data);
                made.and_then(|copy| match &refused {
                    Some(why) if copy.target.exchange.is_empty() => Err(why.clone()),
                    _ => Ok(copy::is_for_lane(operator, queue, &copy)),
                })
            }
            MoveAction::Drop => Ok(true),
        };
        match made {
            Ok(is_for_lane) => predicted.moved(is_for_lane),
            Err(why) => predicted.failed(why, report::name(&letter)),
        }
        listing.add(letter);
    };
    let read = read(operator, queue, filter, ALL, &progress::bar("reading"), add).await?;
    output::lines(&view::list(queue, &listing, read))?;
    output::note(format_args!("dry run: {} would be {}", predicted.moved, action.done()));
    predicted.remarks(action.done(), queue, &operator.names).into_iter().for_each(output::note);
    Ok(if predicted.is_complete() { Exit::Done } else { Exit::Failed })
}

/// Why the broker refuses this user's messages to queues. The message that finds out is for a queue that does not exist, so
/// that it is returned.
async fn refused_by_default_exchange(operator: &Operator) -> Result<Option<String>, Failure> {
    let publisher = Publisher::new(operator.broker.clone(), PublisherConfig::default());
    publisher.connect().await?;
    let (id, body) = (Uuid::new_v4().to_string(), Vec::new().into());
    let properties = BasicProperties::default().with_message_id(id.clone().into());
    let target = Target::queue(format!("{}.no-queue.{id}", operator.settings.common.prefix));
    let published = publisher.offer(Message { target, properties, body }).await;
    publisher.close().await;
    match published {
        Ok(()) | Err(PublishError::Unroutable { .. }) => Ok(None),
        Err(error) => Ok(Some(error.to_string())),
    }
}

/// The command's name in its records.
pub(crate) fn audit_name(queue: HeldQueue, action: MoveAction) -> &'static str {
    match (queue, action) {
        (HeldQueue::Dead, MoveAction::Replay) => "dead.replay",
        (HeldQueue::Dead, MoveAction::Drop) => "dead.drop",
        (HeldQueue::Unroutable, MoveAction::Replay) => "unroutable.replay",
        (HeldQueue::Unroutable, MoveAction::Drop) => "unroutable.drop",
    }
}

#[cfg(test)]
mod tests {
    use garenne_operator::dead::DeadLetter;
    use lapin::{
        BasicProperties,
        types::{AMQPValue, FieldTable},
    };

    /// A dead letter with these headers.
    pub(super) fn letter(kind: &str, headers: &[(&str, AMQPValue)]) -> DeadLetter {
        let mut table = FieldTable::default();
        for (name, value) in headers {
            table.insert((*name).into(), value.clone());
        }
        let properties =
            BasicProperties::default().with_message_id("7".into()).with_type(kind.into()).with_headers(table);
        DeadLetter::of("garenne.dead", &properties, 2)
    }
}
