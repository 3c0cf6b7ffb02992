//! Connections and the processes that own them.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use crate::{
    frame::{Frame, FrameKind},
    id::{ChannelId, ConnectionId, OwnerId},
};

/// What a process is, for the rules of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It publishes tasks, and publishes them again if it got no confirm.
    Publisher,
    /// It consumes, and publishes copies and follow-ups of what it holds.
    Worker,
}

/// What becomes of a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Stored and confirmed at once.
    Prompt,
    /// Stored at once and confirmed later.
    Late(Duration),
    /// Not stored: `basic.nack`.
    Refused,
    /// Stored, and answered by `basic.nack` nevertheless.
    RefusedButStored,
    /// Stored; the connection ends before the confirm.
    LostWithConnection,
    /// Stored; the confirm never comes.
    NeverConfirmed,
}

/// When an armed fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The frame is lost.
    Before,
    /// The frame is processed, and its answer is lost.
    After,
}

/// What an armed fault ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The channel of the frame.
    Channel,
    /// The connection of the frame.
    Connection,
}

/// A fault that waits for a frame of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArmedFault {
    /// The kind of frame; any if absent.
    pub on: Option<FrameKind>,
    /// How many such frames pass unharmed.
    pub skip: u32,
    /// Before or after the frame.
    pub moment: Moment,
    /// What ends.
    pub target: Target,
}

/// What the broker saw of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Deliveries sent.
    pub delivered: u64,
    /// Deliveries acked.
    pub acked: u64,
    /// Deliveries requeued by nack or reject.
    pub requeued: u64,
    /// Deliveries refused without requeue.
    pub discarded: u64,
    /// Deliveries that were not settled when their channel ended.
    pub unsettled: u64,
    /// Messages published.
    pub published: u64,
    /// Positive confirms sent.
    pub confirmed: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) name: Arc<str>,
    pub(crate) role: Role,
    pub(crate) fates: VecDeque<Fate>,
    pub(crate) armed: Vec<ArmedFault>,
    pub(crate) counts: Counts,
}

impl Owner {
    /// The armed fault that strikes at a frame of this kind. It strikes once.
    pub(crate) fn strike(&mut self, kind: FrameKind) -> Option<ArmedFault> {
        let mut struck = None;
        self.armed.retain_mut(|fault| {
            if struck.is_some() || fault.on.is_some_and(|on| on != kind) {
                return true;
            }
            if fault.skip > 0 {
                fault.skip -= 1;
                return true;
            }
            struck = Some(*fault);
            false
        });
        struck
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) owner: OwnerId,
    pub(crate) is_open: bool,
    pub(crate) channels: BTreeSet<ChannelId>,
    /// When the client reads the last event that is under way. Later events do not overtake it.
    pub(crate) last_event: Duration,
    /// An alarm stopped this connection: the broker reads nothing more from it.
    pub(crate) is_blocked: bool,
    /// Frames that the broker has not read.
    pub(crate) unread: VecDeque<(ChannelId, Frame)>,
}

/// Why a connection could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// The broker is down: connections are refused.
    Refused,
    /// The broker is frozen: it answers nothing.
    NoAnswer,
}

impl Connection {
    pub(crate) fn new(owner: OwnerId) -> Self {
        Self {
            owner,
            is_open: true,
            channels: BTreeSet::new(),
            last_event: Duration::ZERO,
            is_blocked: false,
            unread: VecDeque::new(),
        }
    }
}

/// A connection that ended, for traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// By its client, in order.
    Closed,
    /// By a fault, or because its process ended.
    Lost,
}

impl Ending {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Lost => "lost",
        }
    }
}

/// The connection of an event's recipient, if it is still open.
pub(crate) fn is_reading(connections: &[Connection], id: ConnectionId) -> bool {
    connections[id.index()].is_open
}
