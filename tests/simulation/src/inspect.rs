//! What tests and checks read of the broker.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
    time::Duration,
};

use crate::{
    broker::{Content, SimBroker},
    connection::Counts,
    id::{OwnerId, QueueId},
    ledger::{Fork, Rule},
    trace::What,
};

/// A rule that was broken, with everything that happened to the message.
#[derive(Clone, Debug)]
pub struct Violation {
    /// When it was noticed.
    pub at: Duration,
    /// The rule.
    pub rule: Rule,
    /// The message's id.
    pub id: String,
    /// The process that first published it.
    pub origin: String,
    /// What happened to it, a line an event.
    pub history: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, rule, id, origin, history } = self;
        write!(f, "message {id} of {origin} {rule} (at {:.6} s)", at.as_secs_f64())?;
        history.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

impl SimBroker {
    /// The rules that clients broke so far. Each message breaks a rule once.
    pub fn violations(&self) -> Vec<Violation> {
        let violation = |broken: &crate::ledger::Broken| {
            let identity = self.ledger.identity(broken.identity);
            Violation {
                at: broken.at,
                rule: broken.rule,
                id: identity.id.to_string(),
                origin: self.owners[identity.origin.index()].name.to_string(),
                history: identity.history.iter().map(|record| self.line(record)).collect(),
            }
        };
        self.ledger.broken.iter().map(violation).collect()
    }

    /// Whether a rule was broken. Cheaper than [`violations`](Self::violations).
    pub fn is_broken(&self) -> bool {
        !self.ledger.broken.is_empty()
    }

    /// The effect of a task took place: its delivery may be acked.
    pub fn effect(&mut self, id: &str) {
        if let Some(identity) = self.ledger.effect(id) {
            self.ledger.record_of(self.now, identity, What::Effect);
            self.log(What::Note(format!("the effect of {id} takes place")));
        }
    }

    /// A run of a task requests a follow-up: the task's delivery may be acked once that is confirmed, too.
    pub fn follows(&mut self, id: &str, follow_up: &str) {
        self.ledger.follows(id, follow_up);
    }

    /// A task ended in a way that needs neither an effect nor a copy, such as an operator's drop of a dead letter.
    pub fn ended(&mut self, id: &str, why: &str) {
        if let Some(identity) = self.ledger.ended(id) {
            self.ledger.record_of(self.now, identity, What::Ended(why.to_owned()));
            self.log(What::Note(format!("{id} ends without an effect: {why}")));
        }
    }

    /// How often the effect of a task took place.
    pub fn effects(&self, id: &str) -> u32 {
        self.ledger.effects(id)
    }

    /// Ids of confirmed messages that are neither done nor in a queue where messages end.
    pub fn unfinished(&self) -> Vec<Arc<str>> {
        self.ledger.unfinished(|queue| self.queues[queue.index()].is_end)
    }

    /// How often a message came to exist once more, by reason, over the whole history.
    pub fn forks(&self) -> &BTreeMap<Fork, usize> {
        self.ledger.forks()
    }

    /// The name of a process.
    pub fn name_of(&self, owner: OwnerId) -> String {
        self.owners[owner.index()].name.to_string()
    }

    /// What the broker saw of a process.
    pub fn counts_of(&self, owner: OwnerId) -> Counts {
        self.owners[owner.index()].counts
    }

    /// Deliveries of queues that a process has not settled. Those of streams are only credit.
    pub fn unacked_of(&self, owner: OwnerId) -> usize {
        let own = self.channels.iter().filter(|it| self.connections[it.connection.index()].owner == owner);
        let of_queues = |it: &&crate::channel::Unacked| {
            matches!(self.queues[it.queue.index()].content, Content::Queue(_))
        };
        own.map(|channel| channel.unacked.values().filter(of_queues).count()).sum()
    }

    /// The ready and the unacked messages of a queue. A stream has no unacked ones. [`None`] if it does not exist.
    pub fn depth(&self, queue: &str) -> Option<(usize, usize)> {
        match &self.queues[self.names.get(queue)?.index()].content {
            Content::Queue(queue) => Some((queue.len() + queue.leaving.len(), queue.held())),
            Content::Stream(stream) => Some((stream.len(), 0)),
            Content::Missing => None,
        }
    }

    /// Compares queues, channels and ledger with each other, and prefetch with what consumers hold: each line names a difference,
    /// which is an error of the simulation itself. A prefetch over the configured one is an error of the worker.
    pub fn audit(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut places: HashMap<_, Vec<QueueId>> = HashMap::new();
        for (slot, id) in self.queues.iter().zip(self.all_queues()) {
            let Content::Queue(queue) = &slot.content else { continue };
            queue.serials().for_each(|serial| places.entry(serial).or_default().push(id));
            for consumer in
                queue.consumers.iter().filter(|it| slot.prefetch.is_some_and(|most| it.prefetch > most))
            {
                found.push(format!(
                    "{} of {} has a prefetch of {}",
                    consumer.id, slot.name, consumer.prefetch
                ));
            }
            for consumer in queue.consumers.iter().filter(|it| it.held.len() > it.prefetch) {
                found.push(format!(
                    "{} of {} holds {} messages, its prefetch is {}",
                    consumer.id,
                    slot.name,
                    consumer.held.len(),
                    consumer.prefetch
                ));
            }
        }
        for serial in self.ledger.serials().filter(|it| self.ledger.is_tracked(*it)) {
            let actual = places.get(&serial).map_or(&[][..], Vec::as_slice);
            let expected = self.ledger.queue_of(serial);
            if actual != expected.as_slice() {
                found.push(format!("{serial} is in {actual:?}, the ledger has it in {expected:?}"));
            }
        }
        for channel in &self.channels {
            for (tag, unacked) in &channel.unacked {
                if !channel.is_open {
                    found.push(format!("tag {tag} ({}) is unacked on a closed channel", unacked.serial));
                }
            }
        }
        found
    }
}
