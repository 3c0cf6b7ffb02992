//! The events of a history. They are recorded in a compact form, and formatted only when the trace is printed.

use std::time::Duration;

use crate::{
    channel::Unacked,
    connection::{Ending, Fate, Role},
    frame::Settle,
    id::{ChannelId, ConnectionId, ConsumerId, OwnerId, QueueId, Serial},
    queue::DeathReason,
    rules::ReturnKind,
};

/// One operation or event.
#[derive(Clone, Debug)]
pub(crate) enum What {
    Connected(ConnectionId, OwnerId, Role),
    ConnectionEnded(ConnectionId, Ending),
    ChannelOpened(ChannelId, ConnectionId),
    ChannelEnded(ChannelId, String),
    Consuming(ChannelId, ConsumerId, QueueId, u16),
    Cancelled(ConsumerId, QueueId, &'static str),
    Delivered(Serial, ChannelId, u64, QueueId),
    Got(ChannelId, QueueId, bool),
    Settle(ChannelId, u64, bool, Settle),
    Stashed(Unacked),
    Unstashed(QueueId, ChannelId),
    StashDropped(Serial),
    Applied(Serial, QueueId),
    Returned(Serial, QueueId, ReturnKind, u32),
    Published(ChannelId, u64, Serial, Fate),
    Stored(Serial, QueueId),
    Unroutable(Serial),
    Refused(Serial, QueueId),
    Confirmed(ChannelId, u64, bool),
    ConfirmLost(Serial),
    Discarded(Serial, QueueId, DeathReason),
    DeadLettered(Serial, QueueId, QueueId),
    Dropped(Serial, Option<QueueId>, &'static str),
    Declared(QueueId),
    Deleted(QueueId),
    Alarm(bool),
    Frozen(bool),
    Down(Duration),
    Struck(ChannelId, &'static str),
    Effect,
    Ended(String),
    Note(String),
}

/// Names for formatting.
pub(crate) trait Names {
    /// A queue.
    fn queue(&self, id: QueueId) -> &str;
    /// The process of a channel.
    fn owner_of(&self, id: ChannelId) -> &str;
    /// A process.
    fn owner(&self, id: OwnerId) -> &str;
    /// A message: its id, and which of its instances it is.
    fn message(&self, id: Serial) -> String;
}

/// One line, as `12.000500 worker-a channel 3: acks tag 7`.
pub(crate) fn line(at: Duration, what: &What, names: &dyn Names) -> String {
    format!("{:>12.6} {}", at.as_secs_f64(), text(what, names))
}

fn text(what: &What, names: &dyn Names) -> String {
    let queue = |id: &QueueId| names.queue(*id).to_owned();
    let message = |id: &Serial| names.message(*id);
    let channel = |id: &ChannelId| format!("{} {id}", names.owner_of(*id));
    match what {
        What::Connected(connection, owner, role) => {
            format!("{} connects as {role:?}: {connection}", names.owner(*owner))
        }
        What::ConnectionEnded(connection, ending) => format!("{connection} is {}", ending.text()),
        What::ChannelOpened(id, connection) => format!("{} opened on {connection}", channel(id)),
        What::ChannelEnded(id, why) => format!("{} ended: {why}", channel(id)),
        What::Consuming(id, consumer, from, prefetch) => {
            format!("{} consumes {} as {consumer}, prefetch {prefetch}", channel(id), queue(from))
        }
        What::Cancelled(consumer, from, why) => format!("{consumer} of {} is cancelled: {why}", queue(from)),
        What::Delivered(it, id, tag, from) => {
            format!("{} is delivered from {} to {} as tag {tag}", message(it), queue(from), channel(id))
        }
        What::Got(id, from, some) => {
            format!(
                "{} gets {} from {}",
                channel(id),
                if *some { "a message" } else { "nothing" },
                queue(from)
            )
        }
        What::Settle(id, tag, multiple, how) => {
            let verb = match how {
                Settle::Ack => "acks",
                Settle::Requeue(ReturnKind::Reject) => "rejects with requeue",
                Settle::Requeue(_) => "nacks with requeue",
                Settle::Discard => "rejects",
            };
            format!("{} {verb} tag {tag}{}", channel(id), if *multiple { " and all before" } else { "" })
        }
        What::Stashed(it) => format!("the settlement of {} is stashed", message(&it.serial)),
        What::Unstashed(to, id) => format!("the stash of {} is sent to {}", channel(id), queue(to)),
        What::StashDropped(it) => format!("the stashed settlement of {} is dropped", message(it)),
        What::Applied(it, at) => format!("{} is gone from {}: acked", message(it), queue(at)),
        What::Returned(it, to, kind, count) => {
            format!("{} returns to {} ({kind:?}), delivery count {count}", message(it), queue(to))
        }
        What::Published(id, sequence, it, fate) => {
            format!("{} publishes number {sequence}: {} (fate: {fate:?})", channel(id), message(it))
        }
        What::Stored(it, to) => format!("{} is stored in {}", message(it), queue(to)),
        What::Unroutable(it) => format!("{} reaches no queue", message(it)),
        What::Refused(it, by) => format!("{} is refused by {}", message(it), queue(by)),
        What::Confirmed(id, sequence, acked) => {
            format!("{} reads the {} of number {sequence}", channel(id), if *acked { "ack" } else { "nack" })
        }
        What::ConfirmLost(it) => format!("the confirm of {} is lost", message(it)),
        What::Discarded(it, from, reason) => {
            format!("{} leaves {} as a dead letter: {}", message(it), queue(from), reason.as_str())
        }
        What::DeadLettered(it, from, to) => {
            format!("{} is dead-lettered from {} to {}", message(it), queue(from), queue(to))
        }
        What::Dropped(it, from, why) => {
            let from = from.map_or(String::new(), |from| format!(" from {}", names.queue(from)));
            format!("{} is dropped{from}: {why}", message(it))
        }
        What::Declared(it) => format!("{} is declared", queue(it)),
        What::Deleted(it) => format!("{} is deleted", queue(it)),
        What::Alarm(on) => format!("the broker {} its alarm", if *on { "raises" } else { "clears" }),
        What::Frozen(on) => format!("the broker {}", if *on { "freezes" } else { "goes on" }),
        What::Down(span) => format!("the broker restarts and is down for {span:?}"),
        What::Struck(id, what) => format!("a fault ends {what} of {}", channel(id)),
        What::Effect => "the effect takes place".to_owned(),
        What::Ended(why) => format!("it ends without an effect: {why}"),
        What::Note(text) => text.clone(),
    }
}

/// The records of a whole history, if they are wanted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace(Option<Vec<(Duration, What)>>);

impl Trace {
    pub(crate) fn start(&mut self) {
        self.0.get_or_insert_default();
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn push(&mut self, at: Duration, what: What) {
        if let Some(records) = &mut self.0 {
            records.push((at, what));
        }
    }

    pub(crate) fn lines(&self, names: &dyn Names) -> Vec<String> {
        self.0.iter().flatten().map(|(at, what)| line(*at, what, names)).collect()
    }
}
