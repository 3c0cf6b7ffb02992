//! Moving dead letters: back to work, or away.
//!
//! A copy is confirmed before its letter is removed. What dies again during a replay is left alone,
//! so that a replay ends.

use std::{
    collections::{BTreeMap, HashSet, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    time::{Duration, SystemTime},
};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use garenne_common::{
    broker::{Message, Publisher, PublisherConfig, Target},
    config::MOST_SHARDS,
    exit::Failure,
    task::{Copied, TaskId, epoch_ms, header, matches_binding},
};
use indicatif::ProgressBar;
use lapin::Connection;
use tokio::time::{Instant, sleep_until};

use super::{filter::Filter, letter::Letter, walk::Walk};
use crate::{operator::Operator, progress};

/// Copies on their way at once.
const IN_FLIGHT: usize = 500;
/// Held letters count against the broker's consumer timeout (30 minutes by default): a slow replay
/// hands back and walks anew before that.
const HOLD: Duration = Duration::from_secs(600);

/// What to do with the letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Publish a fresh copy, then remove.
    Replay,
    /// Remove.
    Drop,
}

impl Order {
    /// The word for it when it is done.
    pub fn done(self) -> &'static str {
        match self {
            Self::Replay => "replayed",
            Self::Drop => "dropped",
        }
    }
}

/// Moves the letters that a filter takes.
pub struct Mover<'o> {
    /// The fleet.
    pub operator: &'o Operator,
    /// Which letters.
    pub filter: Filter,
    /// What to do with them.
    pub order: Order,
    /// At most this many.
    pub limit: Option<usize>,
    /// At most this many a second.
    pub rate: Option<u32>,
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Letters moved.
    pub moved: u64,
    /// Letters looked at.
    pub looked: u64,
    /// Letters that matched and are still there, by error.
    pub failures: BTreeMap<String, u64>,
}

/// What lasts longer than one walk.
struct Run {
    started: SystemTime,
    moved: Moved,
    /// Letters this run is done with, moved or failed.
    done: HashSet<u64>,
    /// Those of them that were moved, and may have come back when the channel closed.
    gone: HashSet<u64>,
    next_at: Instant,
    bar: ProgressBar,
}

/// How one walk ended.
struct Pass {
    complete: bool,
    removed: u64,
    beyond: u64,
}

impl Mover<'_> {
    /// Moves them.
    ///
    /// # Errors
    /// One line and an exit code; what was not confirmed is still in the queue.
    pub async fn run(&self) -> Result<Moved, Failure> {
        let connection = self.operator.connect().await?;
        let publisher = match self.order {
            Order::Replay => {
                let publisher = Publisher::new(self.operator.broker.clone(), PublisherConfig::default());
                publisher.connect().await?;
                Some(publisher)
            }
            Order::Drop => None,
        };
        let mut run = Run {
            started: SystemTime::now(),
            moved: Moved::default(),
            done: HashSet::new(),
            gone: HashSet::new(),
            next_at: Instant::now(),
            bar: progress::bar(0, self.order.done()),
        };
        loop {
            let pass = self.pass(&connection, publisher.as_ref(), &mut run).await.map_err(|failure| {
                let moved = run.moved.moved;
                Failure::new(failure.exit, format_args!("{failure}; {moved} {} before", self.order.done()))
            })?;
            if pass.complete && (pass.beyond == 0 || pass.removed == 0) {
                break;
            }
        }
        run.bar.finish_and_clear();
        Operator::leave(connection).await;
        if let Some(publisher) = publisher {
            publisher.close().await;
        }
        Ok(run.moved)
    }

    async fn pass(
        &self,
        connection: &Connection,
        publisher: Option<&Publisher>,
        run: &mut Run,
    ) -> Result<Pass, Failure> {
        let mut walk = Walk::start(connection, &self.operator.names.dead()).await?;
        let hand_back_at = Instant::now() + HOLD;
        let (mut complete, mut removed) = (true, 0);
        let mut copies = FuturesUnordered::new();
        run.bar.set_length(walk.total().max(run.moved.looked));
        while let Some(delivery) = walk.next().await? {
            run.moved.looked = run.moved.looked.max(walk.seen());
            run.bar.set_position(walk.seen());
            let letter = Letter::read(&delivery);
            let identity = identity(&letter);
            if run.gone.contains(&identity) {
                walk.remove(delivery.delivery_tag).await?;
                removed += 1;
                continue;
            }
            let died_since = letter.died_at.is_some_and(|at| at > epoch_ms(run.started));
            if died_since || run.done.contains(&identity) || !self.filter.takes(&letter, run.started) {
                continue;
            }
            if self.limit.is_some_and(|limit| run.done.len() >= limit) {
                break;
            }
            if Instant::now() > hand_back_at {
                complete = false;
                break;
            }
            self.pace(&mut run.next_at).await;
            run.done.insert(identity);
            let tag = delivery.delivery_tag;
            match publisher {
                None => {
                    walk.remove(tag).await?;
                    removed += 1;
                    run.gone.insert(identity);
                    run.moved.moved += 1;
                }
                Some(publisher) => match self.copy(&letter) {
                    Err(error) => *run.moved.failures.entry(error).or_default() += 1,
                    Ok(message) => match publisher.send(message).await {
                        Ok(pending) => {
                            copies.push(pending.confirmed().map(move |sent| (tag, identity, sent)));
                        }
                        Err(error) => *run.moved.failures.entry(error.to_string()).or_default() += 1,
                    },
                },
            }
            while let Some((tag, identity, sent)) = next_copy(&mut copies).await {
                removed += settle(&mut walk, run, tag, identity, sent.map_err(|e| e.to_string())).await?;
            }
        }
        while let Some((tag, identity, sent)) = copies.next().await {
            removed += settle(&mut walk, run, tag, identity, sent.map_err(|e| e.to_string())).await?;
        }
        Ok(Pass { complete, removed, beyond: walk.finish().await? })
    }

    async fn pace(&self, next_at: &mut Instant) {
        if let Some(rate) = self.rate {
            sleep_until(*next_at).await;
            *next_at = (*next_at).max(Instant::now()) + Duration::from_secs(1) / rate;
        }
    }

    /// The task as it goes back to work: nothing of its death is left on it.
    fn copy(&self, letter: &Letter) -> Result<Message, String> {
        let now = SystemTime::now();
        // A letter without a type tells its kind by its first routing key, unless that is our own.
        let known_kind = if letter.kind == self.operator.names.dead() { "" } else { &letter.kind };
        let mut copied = Copied::verbatim(&letter.properties, known_kind, now);
        for mark in [
            header::REASON,
            header::ERROR,
            header::WORKER,
            header::FIRST_SEEN,
            header::DIED_AT,
            header::LANE,
            header::ATTEMPT,
            header::NOT_BEFORE,
            header::SUSPECT_RUNS,
            header::SUSPECT_ARMED,
        ] {
            copied = copied.without(mark);
        }
        // Whoever replays what was stopped wants it to run, too.
        copied = copied.with(header::REPLAYED_AT, epoch_ms(now));
        // Whoever replays what expired wants it to run.
        let expires = header::get(letter.properties.headers(), header::EXPIRES_AT).and_then(header::integer);
        if letter.reason == "expired" || expires.is_some_and(|at| at <= epoch_ms(now)) {
            copied = copied.without(header::EXPIRES_AT);
        }
        let id = letter.properties.message_id().as_ref().map(|id| id.as_str().to_owned());
        let id = id.unwrap_or_else(|| TaskId::random().as_str().to_owned());
        let (target, spread) = self.target(letter)?;
        let copied = if spread { copied.keyed(&id) } else { copied };
        let properties = copied.into_properties().with_message_id(id.into());
        Ok(Message { target, properties, body: letter.body.clone().into() })
    }

    /// By kind where a lane takes it, as any publisher would; else back to the lane it came from. And whether
    /// several queues share that lane's tasks.
    fn target(&self, letter: &Letter) -> Result<(Target, bool), String> {
        let Operator { names, settings, .. } = self.operator;
        let takes = |lane: &garenne_common::config::Lane| {
            lane.bindings.iter().any(|binding| matches_binding(binding, &letter.kind))
        };
        if settings.lanes.defined().any(|(_, lane)| takes(lane)) {
            let target = Target::exchange(names.tasks(), letter.kind.clone());
            return Ok((target, settings.lanes.spread(&letter.kind)));
        }
        let lanes: Vec<_> = settings.lanes.defined().map(|(name, _)| name).collect();
        let of_queue = |queue: &String| {
            let is = |lane: &&&str| {
                let of_rung = |&rung| [names.retry(lane, rung), names.retry_shards(lane, rung)];
                (0..MOST_SHARDS).any(|shard| *queue == names.shard(lane, shard))
                    || self.operator.ladder.rungs().iter().any(|rung| of_rung(rung).contains(queue))
            };
            lanes.iter().find(is).map(|lane| (*lane).to_owned())
        };
        let recorded = letter.lane.clone().filter(|lane| lanes.contains(&lane.as_str()));
        match recorded.or_else(|| letter.queue.as_ref().and_then(of_queue)) {
            Some(lane) => {
                let place = names.place(&lane, settings.lanes.shards(&lane));
                Ok((Target::lane(place), place.is_sharded()))
            }
            None => Err(format!("no lane takes kind {:?}, and the letter records none", letter.kind)),
        }
    }
}

/// A finished copy; waits for one only when too many are on their way.
async fn next_copy<F: Future>(copies: &mut FuturesUnordered<F>) -> Option<F::Output> {
    if copies.len() >= IN_FLIGHT { copies.next().await } else { copies.next().now_or_never().flatten() }
}

/// Removes a letter whose copy is confirmed; answers how many were removed.
async fn settle(
    walk: &mut Walk<'_>,
    run: &mut Run,
    tag: u64,
    identity: u64,
    sent: Result<(), String>,
) -> Result<u64, Failure> {
    match sent {
        Ok(()) => {
            run.moved.moved += 1;
            run.gone.insert(identity);
            walk.remove(tag).await?;
            Ok(1)
        }
        Err(error) => {
            *run.moved.failures.entry(error).or_default() += 1;
            Ok(0)
        }
    }
}

/// Tells letters apart across walks; delivery tags do not last, and the broker counts in a header how often
/// it delivered one.
fn identity(letter: &Letter) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&letter.id, &letter.kind, &letter.reason, letter.died_at, letter.attempt, &letter.body)
        .hash(&mut hasher);
    let counts = |name: &str| ["x-delivery-count", "x-acquired-count"].contains(&name);
    for (name, value) in letter.properties.headers().iter().flat_map(|headers| headers.inner()) {
        if !counts(name.as_str()) {
            format!("{name}={value:?}").hash(&mut hasher);
        }
    }
    hasher.finish()
}
