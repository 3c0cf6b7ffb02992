//! Group commit: while a confirm is under way, what arrives is gathered and goes out as one message.
//!
//! The broker's work is per message, not per byte: stored, replicated and confirmed together, a
//! hundred readings cost little more than one. With nothing under way a task goes out at once and
//! alone, so that at low load nobody waits.

use std::{mem, sync::Arc, time::Duration};

use futures_util::{
    StreamExt,
    future::{BoxFuture, join_all},
    stream::FuturesUnordered,
};
use garenne_common::{
    broker::PublishError,
    config::{Invalid, Size},
    task::{Kind, MOST_RECORDS, NewTask},
};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::Outlet;

/// Bounds of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatherConfig {
    /// Records in one message at most; 1 turns gathering off.
    pub records: usize,
    /// Payload bytes in one message at most; a larger task goes alone.
    pub bytes: Size,
    /// How long a record waits at most while confirms are under way.
    #[serde(with = "humantime_serde")]
    pub wait: Duration,
    /// Messages under way at most; what arrives beyond that is gathered, full packs included.
    pub messages: usize,
}

impl Default for GatherConfig {
    fn default() -> Self {
        Self { records: 1, bytes: Size::kib(128), wait: Duration::from_millis(5), messages: 16 }
    }
}

impl GatherConfig {
    /// # Errors
    /// The first bound that cannot be kept.
    pub fn validate(&self) -> Result<(), Invalid> {
        if !(1..=MOST_RECORDS).contains(&self.records) {
            let allowed = format!("expected 1 (off) to {MOST_RECORDS}");
            return Err(Invalid::new("group_commit.records", self.records, allowed));
        }
        if self.messages == 0 {
            return Err(Invalid::new("group_commit.messages", 0, "expected at least 1"));
        }
        Ok(())
    }
}

/// Sends what was gathered: tasks of one kind, as one message where there are several.
pub trait Parcels: Send + Sync + 'static {
    /// Resolves once the message is safe, or says why it is not known to be.
    fn send(&self, tasks: Vec<NewTask>) -> BoxFuture<'static, Result<(), PublishError>>;
}

/// Requests that may wait to be gathered.
const WAITING: usize = 4096;

/// An outlet that gathers.
pub struct GatherOutlet {
    requests: mpsc::Sender<Request>,
    /// For tasks that travel alone.
    parcels: Arc<dyn Parcels>,
    config: GatherConfig,
}

struct Request {
    tasks: Vec<NewTask>,
    answer: oneshot::Sender<Result<(), PublishError>>,
}

impl GatherOutlet {
    /// Starts gathering. It ends when this is dropped and everything under way is answered.
    pub fn start(parcels: Arc<dyn Parcels>, config: GatherConfig) -> Arc<Self> {
        let (requests, receiver) = mpsc::channel(WAITING);
        tokio::spawn(Gatherer::new(Arc::clone(&parcels), config).run(receiver));
        Arc::new(Self { requests, parcels, config })
    }

    async fn gather(&self, tasks: Vec<NewTask>) -> Result<(), PublishError> {
        let (answer, answered) = oneshot::channel();
        let closed = || PublishError::InDoubt("the gateway is closing".to_owned());
        self.requests.send(Request { tasks, answer }).await.map_err(|_| closed())?;
        answered.await.map_err(|_| closed())?
    }
}

/// Whether a task says more of itself than a record of a pack can.
fn travels_alone(task: &NewTask, limit: u64) -> bool {
    task.group.is_some() || task.delay.is_some() || task.timeout.is_some() || task.body.len() as u64 > limit
}

impl Outlet for GatherOutlet {
    fn deliver(&self, tasks: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>> {
        Box::pin(async move {
            let limit = self.config.bytes.0;
            let (alone, mut together): (Vec<_>, Vec<_>) =
                tasks.into_iter().partition(|task| travels_alone(task, limit));
            if alone.is_empty() && together.len() <= self.config.records {
                return self.gather(together).await;
            }
            let mut parts = Vec::new();
            while !together.is_empty() {
                let rest = together.split_off(together.len().min(self.config.records));
                parts.push(mem::replace(&mut together, rest));
            }
            let alone = alone.into_iter().map(|task| self.parcels.send(vec![task]));
            // All of them are waited for, also after a failure: nothing outlives the answer.
            let (gathered, sent) = futures_util::future::join(
                join_all(parts.into_iter().map(|part| self.gather(part))),
                join_all(alone),
            )
            .await;
            gathered.into_iter().chain(sent).collect()
        })
    }
}

type Flight = BoxFuture<'static, (Result<(), PublishError>, Vec<oneshot::Sender<Result<(), PublishError>>>)>;

/// Everything gathered of one kind.
struct Pile {
    kind: Kind,
    tasks: Vec<NewTask>,
    answers: Vec<oneshot::Sender<Result<(), PublishError>>>,
    bytes: u64,
    since: Instant,
}

struct Gatherer {
    parcels: Arc<dyn Parcels>,
    config: GatherConfig,
    /// One for each kind under way, the oldest first; kinds are few.
    piles: Vec<Pile>,
    flights: FuturesUnordered<Flight>,
}

impl Gatherer {
    fn new(parcels: Arc<dyn Parcels>, config: GatherConfig) -> Self {
        Self { parcels, config, piles: Vec::new(), flights: FuturesUnordered::new() }
    }

    async fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        let mut open = true;
        while open || !self.flights.is_empty() || !self.piles.is_empty() {
            let due = self.piles.first().map(|pile| pile.since + self.config.wait);
            let waited = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            let full = self.flights.len() >= self.config.messages;
            tokio::select! {
                biased;
                Some((outcome, answers)) = self.flights.next(), if !self.flights.is_empty() => {
                    for answer in answers {
                        // Whoever asked may be gone.
                        let _ = answer.send(outcome.clone());
                    }
                }
                request = requests.recv(), if open && !(full && self.piled() >= self.config.records) => {
                    match request {
                        Some(request) => self.pile(request),
                        None => open = false,
                    }
                    // What arrived together goes out together.
                    while self.piled() < self.config.records {
                        let Ok(request) = requests.try_recv() else { break };
                        self.pile(request);
                    }
                }
                () = waited, if !full => self.send(0),
            }
            self.send_ready();
        }
    }

    fn piled(&self) -> usize {
        self.piles.iter().map(|pile| pile.tasks.len()).sum()
    }

    fn pile(&mut self, Request { tasks, answer }: Request) {
        let Some(first) = tasks.first() else {
            let _ = answer.send(Ok(()));
            return;
        };
        let bytes = tasks.iter().map(|task| task.body.len() as u64).sum::<u64>();
        let fits = |pile: &Pile| {
            pile.kind == first.kind
                && pile.tasks.len() + tasks.len() <= self.config.records
                && pile.bytes + bytes <= self.config.bytes.0
        };
        match self.piles.iter_mut().find(|pile| fits(pile)) {
            Some(pile) => {
                pile.tasks.extend(tasks);
                pile.answers.push(answer);
                pile.bytes += bytes;
            }
            None => {
                let kind = first.kind.clone();
                self.piles.push(Pile { kind, tasks, answers: vec![answer], bytes, since: Instant::now() });
            }
        }
    }

    /// Sends what need not wait: everything while nothing is under way, else what is full.
    fn send_ready(&mut self) {
        while self.flights.is_empty() && !self.piles.is_empty() {
            self.send(0);
        }
        let GatherConfig { records, bytes, .. } = self.config;
        let full = |pile: &Pile| pile.tasks.len() >= records || pile.bytes >= bytes.0 / 4 * 3;
        while self.flights.len() < self.config.messages
            && let Some(index) = self.piles.iter().position(full)
        {
            self.send(index);
        }
    }

    fn send(&mut self, index: usize) {
        let Pile { tasks, answers, .. } = self.piles.remove(index);
        let sending = self.parcels.send(tasks);
        self.flights.push(Box::pin(async move { (sending.await, answers) }));
    }
}

#[cfg(test)]
mod tests;
