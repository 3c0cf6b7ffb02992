//! Group commit: while a confirm is under way, what arrives is gathered and goes out as one message.
//!
//! The broker's work is per message, not per byte: stored, replicated and confirmed together, a
//! hundred readings cost little more than one. With nothing under way a task goes out at once and
//! alone, so that at low load nobody waits.
//!
//! Small requests and large ones are gathered apart, and have half of the messages under way each: a
//! single reading never waits behind the parts of a request of thousands.

use std::{collections::VecDeque, mem, sync::Arc, time::Duration};

use futures_util::{
    StreamExt,
    future::{BoxFuture, join_all, ready},
    stream::FuturesUnordered,
};
use garenne_amqp::PublishError;
use garenne_common::config::{Invalid, Size};
use garenne_protocol::task::{Kind, MOST_RECORDS, NewTask};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{
        mpsc::{
            self,
            error::{SendTimeoutError, TrySendError},
        },
        oneshot,
    },
    time::Instant,
};

use super::{Outlet, PATIENCE, closing};

/// Bounds of a pack; the table `group_commit` of the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatherConfig {
    /// Records in one message at most; 1 turns gathering off.
    pub records: usize,
    /// Bytes of payload in one message at most; a larger task goes alone.
    pub bytes: Size,
    /// How long a record waits at most while confirms are under way.
    #[serde(with = "humantime_serde")]
    pub wait: Duration,
    /// Messages under way at most, half of them for large requests; what arrives beyond that is gathered, full
    /// packs included.
    pub messages: usize,
}

impl Default for GatherConfig {
    fn default() -> Self {
        Self { records: 500, bytes: Size::kib(128), wait: Duration::from_millis(5), messages: 16 }
    }
}

/// A pack has to fit into what a worker takes (`max_payload`), its records' ids and traces included.
const BYTES: (Size, Size) = (Size::kib(1), Size::mib(1));
/// Nobody waits longer than this for company.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// More messages under way than this are no use to a gateway that gathers.
const MOST_MESSAGES: usize = 1024;

impl GatherConfig {
    /// # Errors
    /// The first bound that cannot be kept.
    pub fn validate(&self) -> Result<(), Invalid> {
        if !(1..=MOST_RECORDS).contains(&self.records) {
            let allowed = format!("expected 1 (off) to {MOST_RECORDS}");
            return Err(Invalid::new("group_commit.records", self.records, allowed));
        }
        let (least, most) = BYTES;
        if !(least..=most).contains(&self.bytes) {
            return Err(Invalid::new(
                "group_commit.bytes",
                self.bytes,
                format!("expected {least} to {most}"),
            ));
        }
        if self.wait > LONGEST_WAIT {
            let wait = humantime::format_duration(self.wait);
            return Err(Invalid::new("group_commit.wait", wait, "expected 0s to 1s, such as 5ms"));
        }
        if !(2..=MOST_MESSAGES).contains(&self.messages) {
            let allowed = format!("expected 2 to {MOST_MESSAGES}");
            return Err(Invalid::new("group_commit.messages", self.messages, allowed));
        }
        Ok(())
    }
}

/// Sends what was gathered, as one message where there are several tasks.
pub trait Parcels: Send + Sync + 'static {
    /// Whether anything may be sent now.
    ///
    /// # Errors
    /// Why not; nothing new should be taken until it may.
    fn ready(&self) -> Result<(), PublishError> {
        Ok(())
    }

    /// Resolves once the message is safe, or says why it is not known to be.
    fn send(&self, tasks: Vec<NewTask>) -> BoxFuture<'static, Result<(), PublishError>>;
}

/// Requests of one size that may wait to be gathered.
const WAITING: usize = 4096;

/// A request is small if at least this many of its size fit into one message.
const SMALL_SHARE: usize = 16;

/// An outlet that gathers the tasks of one kind.
pub struct GatherOutlet {
    small: mpsc::Sender<Request>,
    large: mpsc::Sender<Request>,
    kind: Kind,
    /// For tasks that travel alone.
    parcels: Arc<dyn Parcels>,
    config: GatherConfig,
}

struct Request {
    tasks: Vec<NewTask>,
    answer: oneshot::Sender<Result<(), PublishError>>,
    since: Instant,
}

/// Nothing was sent: there was no place in a message in time.
fn no_turn() -> PublishError {
    PublishError::Busy { what: "place in a message", waited: PATIENCE }
}

/// Delivers a small request, or a part of a large one. What is rare is boxed: as many of these are under way as there
/// are senders.
async fn gather(requests: &mpsc::Sender<Request>, tasks: Vec<NewTask>) -> Result<(), PublishError> {
    let (answer, answered) = oneshot::channel();
    match requests.try_send(Request { tasks, answer, since: Instant::now() }) {
        Ok(()) => {}
        Err(TrySendError::Full(request)) => Box::pin(wait(requests, request)).await?,
        Err(TrySendError::Closed(_)) => return Err(closing()),
    }
    answered.await.map_err(|_| closing())?
}

/// Waits for a place among those that wait to be gathered.
async fn wait(requests: &mpsc::Sender<Request>, request: Request) -> Result<(), PublishError> {
    requests.send_timeout(request, PATIENCE).await.map_err(|refused| match refused {
        SendTimeoutError::Timeout(_) => no_turn(),
        SendTimeoutError::Closed(_) => closing(),
    })
}

impl GatherOutlet {
    /// Starts gathering tasks of `kind`, whose records are many and small; what else there is travels
    /// alone. It ends when this is dropped and everything under way is answered.
    pub fn start(parcels: Arc<dyn Parcels>, config: GatherConfig, kind: Kind) -> Arc<Self> {
        let start = |messages| {
            let (requests, receiver) = mpsc::channel(WAITING);
            let config = GatherConfig { messages, ..config };
            tokio::spawn(Gatherer::new(Arc::clone(&parcels), config).run(receiver));
            requests
        };
        let large = config.messages / 2;
        let (small, large) = (start(config.messages - large), start(large));
        Arc::new(Self { small, large, kind, parcels, config })
    }

    /// Whether many such requests fit into one message.
    fn is_small(&self, tasks: &[NewTask]) -> bool {
        let bytes: usize = tasks.iter().map(|task| task.body.len()).sum();
        tasks.len() <= (self.config.records / SMALL_SHARE).max(1)
            && bytes <= self.config.bytes.bytes() / SMALL_SHARE
    }

    /// Whether a task is of another kind, or says more of itself than a record of a pack can.
    fn travels_alone(&self, task: &NewTask) -> bool {
        task.kind != self.kind
            || task.group.is_some()
            || task.delay.is_some()
            || task.timeout.is_some()
            || task.parent.is_some()
            || task.body.len() as u64 > self.config.bytes.0
    }

    /// Where requests of this size are gathered.
    fn requests(&self, tasks: &[NewTask]) -> &mpsc::Sender<Request> {
        if self.is_small(tasks) { &self.small } else { &self.large }
    }

    /// Delivers what does not travel as one.
    async fn divide(&self, tasks: Vec<NewTask>) -> Result<(), PublishError> {
        let (alone, mut together): (Vec<_>, Vec<_>) =
            tasks.into_iter().partition(|task| self.travels_alone(task));
        let requests = self.requests(&together);
        let mut parts = Vec::new();
        while !together.is_empty() {
            let rest = together.split_off(together.len().min(self.config.records));
            parts.push(mem::replace(&mut together, rest));
        }
        let alone = alone.into_iter().map(|task| self.parcels.send(vec![task]));
        // All of them are waited for, also after a failure: nothing outlives the answer.
        let (gathered, sent) = futures_util::future::join(
            join_all(parts.into_iter().map(|part| gather(requests, part))),
            join_all(alone),
        )
        .await;
        gathered.into_iter().chain(sent).collect()
    }
}

impl Outlet for GatherOutlet {
    fn deliver(&self, tasks: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>> {
        if let Err(error) = self.parcels.ready() {
            return Box::pin(ready(Err(error)));
        }
        let as_one = tasks.len() <= self.config.records && !tasks.iter().any(|task| self.travels_alone(task));
        if as_one { Box::pin(gather(self.requests(&tasks), tasks)) } else { Box::pin(self.divide(tasks)) }
    }
}

type Flight = BoxFuture<'static, (Result<(), PublishError>, Vec<oneshot::Sender<Result<(), PublishError>>>)>;

/// What is gathered into one message.
struct Pile {
    tasks: Vec<NewTask>,
    answers: Vec<oneshot::Sender<Result<(), PublishError>>>,
    bytes: u64,
    since: Instant,
}

struct Gatherer {
    parcels: Arc<dyn Parcels>,
    config: GatherConfig,
    /// The oldest first.
    piles: VecDeque<Pile>,
    flights: FuturesUnordered<Flight>,
}

impl Gatherer {
    fn new(parcels: Arc<dyn Parcels>, config: GatherConfig) -> Self {
        Self { parcels, config, piles: VecDeque::new(), flights: FuturesUnordered::new() }
    }

    async fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        let mut open = true;
        while open || !self.flights.is_empty() || !self.piles.is_empty() {
            let full = self.flights.len() >= self.config.messages;
            // With no room for another message the oldest records wait for it, but not for ever.
            let wait = if full { PATIENCE } else { self.config.wait };
            let due = self.piles.front().map(|pile| pile.since + wait);
            let waited = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
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
                () = waited => if full { self.refuse() } else { self.send() },
            }
            self.send_ready();
        }
    }

    fn piled(&self) -> usize {
        self.piles.iter().map(|pile| pile.tasks.len()).sum()
    }

    fn pile(&mut self, Request { tasks, answer, since }: Request) {
        let refused = if since.elapsed() > PATIENCE { Some(Err(no_turn())) } else { None };
        if let Some(word) = refused.or_else(|| tasks.is_empty().then_some(Ok(()))) {
            // Whoever asked may be gone.
            let _ = answer.send(word);
            return;
        }
        let bytes = tasks.iter().map(|task| task.body.len() as u64).sum::<u64>();
        let GatherConfig { records, bytes: most, .. } = self.config;
        let fits =
            |pile: &&mut Pile| pile.tasks.len() + tasks.len() <= records && pile.bytes + bytes <= most.0;
        match self.piles.back_mut().filter(fits) {
            Some(pile) => {
                pile.tasks.extend(tasks);
                pile.answers.push(answer);
                pile.bytes += bytes;
            }
            None => {
                self.piles.push_back(Pile { tasks, answers: vec![answer], bytes, since });
            }
        }
    }

    /// Sends what need not wait: everything while nothing is under way, else what is full.
    fn send_ready(&mut self) {
        while self.flights.is_empty() && !self.piles.is_empty() {
            self.send();
        }
        let GatherConfig { records, bytes, .. } = self.config;
        let full = |pile: &Pile| pile.tasks.len() >= records || pile.bytes >= bytes.0 / 4 * 3;
        // A pile with another behind it is as full as it gets.
        while self.flights.len() < self.config.messages
            && self.piles.front().is_some_and(|first| self.piles.len() > 1 || full(first))
        {
            self.send();
        }
    }

    /// Tells the senders of the oldest pile that there is no place for it.
    fn refuse(&mut self) {
        for answer in self.piles.pop_front().into_iter().flat_map(|pile| pile.answers) {
            let _ = answer.send(Err(no_turn()));
        }
    }

    /// Sends the oldest pile.
    fn send(&mut self) {
        let Some(Pile { tasks, answers, .. }) = self.piles.pop_front() else { return };
        let sending = self.parcels.send(tasks);
        self.flights.push(Box::pin(async move { (sending.await, answers) }));
    }
}

#[cfg(test)]
mod tests;
