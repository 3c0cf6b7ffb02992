//! An identity and its instances.

use std::{sync::Arc, time::Duration};

use super::Rule;
use crate::{
    id::{OwnerId, QueueId, Serial},
    trace::What,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdentityId(pub(crate) usize);

/// Why a message exists twice, where that cannot be avoided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fork {
    /// Its publisher got no confirm and published it again.
    Republished,
    /// A copy was refused or unconfirmed, and was published again, or its original was requeued.
    ConfirmLost,
    /// The ack of the original was lost after its copy was published.
    AckLost,
    /// A worker published a copy of a delivery that it had lost.
    LostDelivery,
    /// A task ran again and published its follow-ups again, or something else was published again under its id.
    Repeated,
    /// Bindings or headers routed one publish to several queues.
    SeveralQueues,
}

#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) id: Arc<str>,
    /// The process that first published it.
    pub(crate) origin: OwnerId,
    pub(super) instances: Vec<Serial>,
    /// A publisher knows that the broker has it.
    pub(super) is_confirmed: bool,
    /// Its queue was deleted by an operator, and no worker has to publish it again.
    pub(super) is_excused: bool,
    /// How many instances beside the first one are explained.
    pub(super) forks: usize,
    pub(super) effects: u32,
    /// The follow-ups that its run has requested.
    pub(super) follow_ups: Vec<Arc<str>>,
    /// It had its effect, or needs none.
    pub(super) has_ended: bool,
    pub(super) is_changed: bool,
    pub(super) broken: Vec<Rule>,
    pub(crate) history: Vec<(Duration, What)>,
}

impl Identity {
    pub(super) fn new(id: Arc<str>, origin: OwnerId) -> Self {
        Self {
            id,
            origin,
            instances: Vec::new(),
            is_confirmed: false,
            is_excused: false,
            forks: 0,
            effects: 0,
            follow_ups: Vec::new(),
            has_ended: false,
            is_changed: false,
            broken: Vec::new(),
            history: Vec::new(),
        }
    }

    /// Whether an instance of it must be somewhere.
    pub(super) fn must_exist(&self) -> bool {
        self.is_confirmed && !self.is_excused && !self.has_ended
    }
}

/// A delivery that a process published a message from: of the message itself, whose copy it is, or of its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) serial: Serial,
    /// The index of the delivery.
    pub(super) delivery: usize,
    pub(super) is_own: bool,
}

/// What the publisher knows of a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Pending,
    Acked,
    Refused,
    Returned,
    Lost,
}

impl Outcome {
    /// Whether it may be published again.
    pub(super) fn has_failed(self) -> bool {
        !matches!(self, Self::Pending | Self::Acked)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Not stored yet, refused, acked after its copy, dropped, or deleted.
    Nowhere,
    /// Ready, or on its way to a dead-letter exchange.
    Queue(QueueId),
    /// Unacked.
    Held(QueueId),
    /// Unacked when its queue was deleted: the worker that has it publishes it again, unless it runs to its end there.
    Orphan,
    /// Acked after its effect.
    Done,
}

#[derive(Clone, Debug)]
pub(super) struct Instance {
    pub(super) identity: Option<IdentityId>,
    pub(super) source: Option<Source>,
    pub(super) place: Place,
    pub(super) outcome: Outcome,
    /// Why it may be stored beside others.
    pub(super) fork: Option<Fork>,
    pub(super) was_stored: bool,
    /// The process of each delivery.
    pub(super) deliveries: Vec<OwnerId>,
    /// The instances of all messages at the current delivery: those after them are younger.
    pub(super) instances_before: usize,
    /// A copy of the current delivery was stored.
    pub(super) has_copy: bool,
    /// Its confirm was read.
    pub(super) is_copied: bool,
    /// The broker read a settlement of the current delivery.
    pub(super) is_settled: bool,
}

impl Instance {
    pub(super) fn new(identity: Option<IdentityId>, source: Option<Source>) -> Self {
        Self {
            identity,
            source,
            place: Place::Nowhere,
            outcome: Outcome::Pending,
            fork: None,
            was_stored: false,
            deliveries: Vec::new(),
            instances_before: 0,
            has_copy: false,
            is_copied: false,
            is_settled: false,
        }
    }

    pub(super) fn exists(&self) -> bool {
        self.place != Place::Nowhere
    }

    /// Whether it is one of the instances whose number is limited.
    pub(super) fn stands_alone(&self) -> bool {
        let is_beside_its_copy = matches!(self.place, Place::Held(_)) && self.has_copy;
        self.exists() && !is_beside_its_copy && self.place != Place::Orphan
    }
}
