//! Dead letters: from their queue to the exchange that it names.

use std::sync::Arc;

use crate::{
    broker::SimBroker,
    id::{QueueId, Serial},
    message::{Death, Message, Stored},
    queue::{DeadLettering, DeathReason},
    schedule::Timer,
    trace::What,
};

impl SimBroker {
    /// Makes a message of a queue a dead letter. Without a dead-letter exchange it is gone.
    pub(crate) fn bury(&mut self, id: QueueId, stored: Stored, reason: DeathReason) {
        let serial = stored.serial;
        let due = self.now + self.random.between(&self.timings.dead_letter);
        let Some(queue) = self.queue(id) else { return };
        let Some(dead_lettering) = queue.dead_lettering.clone() else {
            return self.drop_message(serial, id, reason.as_str());
        };
        if dead_lettering.at_least_once {
            queue.leaving.insert(serial, (stored, reason));
            self.schedule.at(due, Timer::Transfer(id, serial));
            self.ledger.stored(serial, id);
            self.note(serial, What::Discarded(serial, id, reason));
        } else if !self.move_on(id, &dead_lettering, &stored, reason) {
            self.drop_message(serial, id, "its dead-letter exchange routes it to no queue that takes it");
        }
    }

    /// Moves a dead letter to its target. It stays, and is tried again later, if there is none that takes it.
    pub(crate) fn transfer(&mut self, id: QueueId, serial: Serial) {
        let Some(queue) = self.queue(id) else { return };
        let Some((stored, reason)) = queue.leaving.remove(&serial) else { return };
        let Some(dead_lettering) = queue.dead_lettering.clone() else { return };
        if self.move_on(id, &dead_lettering, &stored, reason) {
            return;
        }
        let due = self.now + self.timings.dead_letter_retry;
        if let Some(queue) = self.queue(id) {
            queue.leaving.insert(serial, (stored, reason));
            self.schedule.at(due, Timer::Transfer(id, serial));
        }
    }

    /// Whether the dead letter arrived in all its target queues.
    fn move_on(&mut self, from: QueueId, to: &DeadLettering, stored: &Stored, reason: DeathReason) -> bool {
        let (serial, original) = (stored.serial, &stored.message);
        let mut deaths = stored.deaths.clone();
        let death = Death {
            queue: Arc::clone(&self.queues[from.index()].name),
            reason: reason.as_str().into(),
            exchange: Arc::clone(&original.exchange),
            key: Arc::clone(&original.routing_key),
            count: 1,
        };
        Death::record(&mut deaths, death);
        let message = Message {
            exchange: Arc::clone(&to.exchange),
            routing_key: Arc::clone(to.key.as_ref().unwrap_or(&original.routing_key)),
            properties: Death::properties(&deaths, &original.properties, self.rules.tells_last_death()),
            body: original.body.clone(),
        };
        let mut targets = self.route(&message).unwrap_or_default();
        let had_target = !targets.is_empty();
        targets.retain(|queue| !is_cycle(&deaths, &self.queues[queue.index()].name));
        if had_target && targets.is_empty() {
            self.drop_message(serial, from, "a cycle of dead-lettering without a rejection");
            return true;
        }
        if !had_target || !targets.iter().all(|queue| self.takes(*queue)) {
            return false;
        }
        let message = Arc::new(message);
        for (nth, queue) in targets.into_iter().enumerate() {
            let serial = if nth == 0 { serial } else { self.ledger.duplicated(serial) };
            self.note(serial, What::DeadLettered(serial, from, queue));
            self.store(queue, serial, Arc::clone(&message), deaths.clone());
        }
        true
    }

    fn drop_message(&mut self, serial: Serial, from: QueueId, why: &'static str) {
        self.ledger.dropped(serial);
        self.note(serial, What::Dropped(serial, Some(from), why));
    }
}

/// Whether the message was in this queue before and no client rejected it since.
fn is_cycle(deaths: &[Death], queue: &str) -> bool {
    deaths
        .iter()
        .position(|death| *death.queue == *queue)
        .is_some_and(|at| deaths[..=at].iter().all(|death| &*death.reason != DeathReason::Rejected.as_str()))
}
