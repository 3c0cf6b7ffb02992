//! State of a replay or drop over all of its walks.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
    time::SystemTime,
};

use futures_util::{future::BoxFuture, stream::FuturesUnordered};
use garenne_amqp::PublishError;
use garenne_common::exit::Failure;
use indicatif::ProgressBar;
use lapin::message::Delivery;
use tokio::time::Instant;

use super::{
    action::MoveAction,
    copy::stable,
    queue_walk::QueueWalk,
    report::{MoveReport, Multiset},
};
use crate::progress;

/// State of a run over all of its walks.
pub(super) struct MoveRun {
    pub(super) started: SystemTime,
    pub(super) moved: MoveReport,
    /// Dead letters that the run began to move.
    pub(super) begun: u64,
    /// Messages in the queue at the start.
    pub(super) present: u64,
    /// What a walk left for the next one; `None` before the first walk.
    pub(super) todo: Option<Multiset>,
    /// A moved dead letter that the end of a walk requeued, so that the next walk must remove it.
    pub(super) owed: Option<u64>,
    /// The last dead letter that the current walk removed.
    pub(super) last_removed: Option<u64>,
    /// Ids of unconfirmed copies. Two copies with one id are never in flight at once, because a returned message
    /// is matched by its id.
    pub(super) in_flight: HashSet<String>,
    pub(super) next_at: Instant,
    hasher: RandomState,
    pub(super) bar: ProgressBar,
}

/// A published copy and its confirm.
pub(super) struct SentCopy {
    pub(super) tag: u64,
    pub(super) identity: u64,
    pub(super) id: String,
    pub(super) name: String,
    pub(super) to_lane: bool,
    pub(super) confirmed: Result<(), PublishError>,
}

pub(super) type SentCopies = FuturesUnordered<BoxFuture<'static, SentCopy>>;

/// Why a walk ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WalkEnd {
    /// Every message was read.
    Complete,
    /// The limit is reached.
    Limit,
    /// The messages have been held for too long and are requeued.
    HoldExpired,
    /// The run was cancelled.
    Stopped,
}

impl MoveRun {
    pub(super) fn new(action: MoveAction) -> Self {
        Self {
            started: SystemTime::now(),
            moved: MoveReport::default(),
            begun: 0,
            present: 0,
            todo: None,
            owed: None,
            last_removed: None,
            in_flight: HashSet::new(),
            next_at: Instant::now(),
            hasher: RandomState::new(),
            bar: progress::bar(0, action.done()),
        }
    }

    /// A hash of all properties. Delivery tags are valid for one walk only.
    pub(super) fn identity(&self, delivery: &Delivery) -> u64 {
        let Delivery { routing_key, properties, data, .. } = delivery;
        self.hasher.hash_one((routing_key.as_str(), stable(properties), data))
    }

    pub(super) async fn remove(
        &mut self,
        walk: &mut QueueWalk<'_>,
        tag: u64,
        identity: u64,
    ) -> Result<(), Failure> {
        walk.remove(tag).await?;
        self.last_removed = Some(identity);
        Ok(())
    }

    /// Removes a dead letter whose copy is confirmed.
    pub(super) async fn settle(&mut self, walk: &mut QueueWalk<'_>, sent: SentCopy) -> Result<(), Failure> {
        match sent.confirmed {
            Ok(()) => {
                self.remove(walk, sent.tag, sent.identity).await?;
                self.moved.moved += 1;
                self.moved.without_lane += u64::from(!sent.to_lane);
            }
            Err(error) => self.moved.failed(error.to_string(), sent.name),
        }
        self.in_flight.remove(&sent.id);
        Ok(())
    }

    /// The failure with the progress of the run.
    pub(super) fn failure(&self, action: MoveAction, failure: &Failure) -> Failure {
        let done = action.done();
        let doubt = match self.in_flight.len() {
            0 => String::new(),
            n => format!(
                "; up to {n} more may be {done} although their dead letters remain, under the same ids"
            ),
        };
        Failure::new(failure.exit, format_args!("{failure}; {} {done} before{doubt}", self.moved.moved))
    }
}
