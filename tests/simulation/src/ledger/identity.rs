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
    /// How many instances are explained beside the first one and beside copies.
    pub(super) forks: usize,
    /// How many instances were ever explained at once.
    pub(super) most_messages: usize,
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
            most_messages: 1,
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

/// Why a process published a message, as far as its earlier deliveries tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Published {
    /// It had received a message of the identity.
    Copy(OwnerId),
    /// It had received the parent.
    FollowUp(OwnerId),
    /// Otherwise: the first one, or a fork.
    New,
}

/// One delivery of an instance.
#[derive(Clone, Debug)]
pub(super) struct Delivery {
    pub(super) owner: OwnerId,
    /// The instances of all messages at that time: those after them are younger.
    pub(super) serials_before: usize,
    pub(super) end: DeliveryEnd,
}

impl Delivery {
    /// Whether a copy may be one of this delivery.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.end, DeliveryEnd::None | DeliveryEnd::Returned)
    }
}

/// What became of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeliveryEnd {
    /// The broker has read no ack of it.
    None,
    /// The message is ready again. The process may still publish a copy of it.
    Returned,
    /// It was acked after its effect.
    Ended,
    /// It was acked after this copy was confirmed.
    Copied(Serial),
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
    pub(super) published: Published,
    pub(super) place: Place,
    pub(super) outcome: Outcome,
    /// Why it may be stored beside others.
    pub(super) fork: Option<Fork>,
    pub(super) was_stored: bool,
    pub(super) deliveries: Vec<Delivery>,
    /// An ack relied on it.
    pub(super) is_used: bool,
}

impl Instance {
    pub(super) fn new(identity: Option<IdentityId>, published: Published) -> Self {
        Self {
            identity,
            published,
            place: Place::Nowhere,
            outcome: Outcome::Pending,
            fork: None,
            was_stored: false,
            deliveries: Vec::new(),
            is_used: false,
        }
    }

    pub(super) fn exists(&self) -> bool {
        self.place != Place::Nowhere
    }

    /// Whether it is one of the instances whose number is limited.
    pub(super) fn is_counted(&self) -> bool {
        let is_copied = || matches!(self.deliveries.last().map(|it| it.end), Some(DeliveryEnd::Copied(_)));
        match self.place {
            Place::Nowhere | Place::Orphan => false,
            Place::Held(_) => !is_copied(),
            Place::Queue(_) | Place::Done => true,
        }
    }
}
