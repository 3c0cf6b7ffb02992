//! This worker as a member of the fleet.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use garenne_common::{
    broker::{Backoff, BrokerError, Message, PublishError, Publisher, Target},
    exit::{Exit, HasExit},
    shutdown::Mode,
    task::{StandingOrder, epoch_ms},
    topology::Names,
};
use humantime::format_duration;
use lapin::BasicProperties;
use serde::{Deserialize, de::DeserializeOwned};
use thiserror::Error;
use tokio::{
    sync::{Mutex as AsyncMutex, watch},
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};

use super::{
    lives::{Life, Lives},
    orders::Orders,
};
use crate::consumer::{
    Link,
    journal::{self, Progress},
    presence,
};

/// How long after a message came back its worker's death is certainly visible: the broker deletes the
/// exclusive queue of a dead connection in the same breath as it requeues its messages.
const SETTLING: Duration = Duration::from_millis(250);
/// How long the worker's own queue may take before work starts without it.
const APPEARANCE: Duration = Duration::from_secs(10);

/// How long a stream is read where no mark can be set, because the broker blocks publishers.
const UNMARKED: Duration = Duration::from_secs(3);

/// A command that arrives on the worker's own queue.
#[derive(Debug, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub(crate) enum Command {
    Shutdown { mode: Option<Mode> },
    Quiet,
    Resume,
    Beat,
}

/// Why a worker cannot become a member. Without the stop orders it would start what an operator
/// stopped; without the lives it could not tell a crash from a hand-back.
#[derive(Debug, Error)]
pub enum FleetError {
    /// The broker does not let it read a stream.
    #[error(transparent)]
    Denied(BrokerError),
    /// A stream was not read to its end in time.
    #[error("stream {stream:?} was not read to its end within {}: {problem}", format_duration(*.waited))]
    Behind {
        /// The stream.
        stream: String,
        /// How long it was tried.
        waited: Duration,
        /// What kept it from being read, last.
        problem: String,
    },
}

impl HasExit for FleetError {
    fn exit(&self) -> Exit {
        match self {
            Self::Denied(error) => error.exit(),
            Self::Behind { .. } => Exit::BrokerUnavailable,
        }
    }
}

/// This worker among the others.
pub(crate) struct Member {
    worker: Arc<str>,
    incarnation: String,
    names: Names,
    link: Link,
    publisher: Publisher,
    lives: Mutex<Lives>,
    orders: Arc<Orders>,
    /// When the others were last looked at, begun.
    looked: AsyncMutex<Option<Instant>>,
}

/// The tasks that keep a member informed; dropped, they end.
pub(crate) struct Membership {
    pub(crate) member: Arc<Member>,
    tasks: JoinSet<()>,
}

impl Member {
    /// Reads the streams to their end, for at most `patience`, then lets the fleet know. `enforce` hears of
    /// each standing order as it comes; `obey` of what arrives on the worker's own queue.
    ///
    /// # Errors
    /// [`FleetError`].
    pub(crate) async fn join(
        worker: Arc<str>,
        names: Names,
        link: Link,
        publisher: Publisher,
        patience: Duration,
        obey: impl Fn(Command) + Send + Sync + 'static,
        enforce: impl Fn(&StandingOrder) + Send + 'static,
    ) -> Result<Membership, FleetError> {
        let member = Arc::new(Self {
            incarnation: uuid::Uuid::now_v7().to_string(),
            worker,
            names,
            link,
            publisher,
            lives: Mutex::default(),
            orders: Arc::default(),
            looked: AsyncMutex::default(),
        });
        let mut tasks = JoinSet::new();
        let this = Arc::clone(&member);
        let orders = member.read(&mut tasks, member.names.stops(), move |order| this.take(&order, &enforce));
        let this = Arc::clone(&member);
        let lives = member.read(&mut tasks, member.names.lives(), move |life| this.lives().apply(life));
        let both = async {
            tokio::try_join!(orders.caught_up(&member, patience), lives.caught_up(&member, patience))
        };
        both.await?;
        let this = Arc::clone(&member);
        let (present, is_present) = watch::channel(false);
        let hello = async move || {
            this.tell(|worker, incarnation, at| Life::Hello { worker, incarnation, at }).await;
            present.send_replace(true);
        };
        let command = move |body: &[u8]| match serde_json::from_slice(body) {
            Ok(command) => obey(command),
            Err(error) => tracing::warn!(%error, "a command that cannot be read"),
        };
        let (link, names, worker) = (member.link.clone(), member.names.clone(), member.worker.to_string());
        tasks.spawn(presence::keep(link, names, worker, hello, command));
        let mut is_present = is_present;
        if timeout(APPEARANCE, is_present.wait_for(|present| *present)).await.is_err() {
            tracing::warn!(worker = %member.worker, "no queue of its own: does another worker have this id?");
        }
        Ok(Membership { member, tasks })
    }

    /// Begins to read a stream.
    fn read<R: DeserializeOwned>(
        &self,
        tasks: &mut JoinSet<()>,
        stream: String,
        mut take: impl FnMut(R) + Send + 'static,
    ) -> Reading {
        let (sender, progress) = watch::channel(Progress::default());
        let (name, ours) = (stream.clone(), self.incarnation.clone());
        let read = move |record: &[u8]| match serde_json::from_slice(record) {
            Ok(Record::Mark { mark }) => mark == ours,
            Ok(Record::Other(record)) => {
                take(record);
                false
            }
            Err(error) => {
                tracing::warn!(%error, stream = name, "a record that cannot be read");
                false
            }
        };
        tasks.spawn(journal::follow(self.link.clone(), stream.clone(), sender, read));
        Reading { stream, progress }
    }

    /// This life of the worker.
    pub(crate) fn incarnation(&self) -> &str {
        &self.incarnation
    }

    /// What an operator ordered.
    pub(crate) fn orders(&self) -> &Arc<Orders> {
        &self.orders
    }

    /// Stops a record of a pack that is here, as an order to the whole fleet would.
    pub(crate) fn stop_here(&self, task: &str) {
        let order = StandingOrder::Task { task: task.to_owned(), at: epoch_ms(SystemTime::now()) };
        self.orders.apply(&order);
    }

    /// Pauses or resumes a group on this worker alone; a later order to the fleet overrules it.
    pub(crate) fn pause_here(&self, group: &str, pause: bool) {
        let (group, at) = (group.to_owned(), epoch_ms(SystemTime::now()));
        self.orders.apply(&match pause {
            true => StandingOrder::Pause { pause: group, at },
            false => StandingOrder::Resume { resume: group, at },
        });
    }

    /// Unclean deaths that may have to do with a message that just came back.
    pub(crate) async fn unclean_deaths(&self) -> usize {
        let arrived = Instant::now();
        tokio::time::sleep(SETTLING).await;
        let mut looked = self.looked.lock().await;
        if looked.is_none_or(|looked| looked < arrived + SETTLING) {
            *looked = Some(Instant::now());
            self.look_for_the_dead().await;
        }
        drop(looked);
        self.lives().deaths(epoch_ms(SystemTime::now()))
    }

    async fn look_for_the_dead(&self) {
        let open = self.lives().open();
        for (worker, incarnation) in
            open.into_iter().filter(|(_, incarnation)| *incarnation != self.incarnation)
        {
            if presence::is_alive(&self.link, &self.names, &worker).await == Some(false) {
                let died = Life::Died { worker, incarnation, at: epoch_ms(SystemTime::now()) };
                tracing::warn!(?died, "a worker died uncleanly");
                self.lives().apply(died.clone());
                self.publish(&died).await;
            }
        }
    }

    fn take(&self, order: &StandingOrder, enforce: &impl Fn(&StandingOrder)) {
        // An old order that is read again must not stop what was published since.
        if self.orders.apply(order) {
            enforce(order);
        }
    }

    fn lives(&self) -> std::sync::MutexGuard<'_, Lives> {
        self.lives.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes this worker's mark to a stream.
    async fn mark(&self, stream: &str) -> Result<(), PublishError> {
        let body = serde_json::json!({ "mark": self.incarnation }).to_string();
        let properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_content_type("application/json".into())
            .with_message_id(uuid::Uuid::now_v7().to_string().into());
        let target = Target::queue(stream.to_owned());
        self.publisher.publish(Message { target, properties, body: body.into() }).await
    }

    async fn tell(&self, life: impl Fn(String, String, i64) -> Life) {
        let life = life(self.worker.to_string(), self.incarnation.clone(), epoch_ms(SystemTime::now()));
        self.publish(&life).await;
    }

    /// Best effort: without the record a death goes unnoticed, which costs one more worker at most.
    async fn publish(&self, life: &Life) {
        let body = serde_json::to_vec(life).expect("text and numbers");
        let target = Target::announce(self.names.events(), format!("life.{}", self.worker));
        let properties =
            BasicProperties::default().with_delivery_mode(2).with_content_type("application/json".into());
        if let Err(error) = self.publisher.publish(Message { target, properties, body: body.into() }).await {
            tracing::warn!(%error, "a life could not be told");
        }
    }
}

/// A record of either stream: an order or a life, or the mark of a worker that wants to know when it has
/// read all that is there.
#[derive(Deserialize)]
#[serde(untagged)]
enum Record<R> {
    Mark { mark: String },
    Other(R),
}

/// A stream that is being read.
struct Reading {
    stream: String,
    progress: watch::Receiver<Progress>,
}

impl Reading {
    /// Sets a mark at the end of the stream and waits until it is read.
    async fn caught_up(self, member: &Member, patience: Duration) -> Result<(), FleetError> {
        let until = Instant::now() + patience;
        let Self { stream, mut progress } = self;
        let marking = async {
            let mut backoff = Backoff::default();
            loop {
                match member.mark(&stream).await {
                    Ok(()) => std::future::pending().await,
                    // Workers are what ends a shortage of memory: they must be able to start in it.
                    Err(PublishError::Blocked) => return tokio::time::sleep(UNMARKED).await,
                    Err(error) => tracing::debug!(%error, stream, "no mark yet"),
                }
                tokio::time::sleep(backoff.next_wait()).await;
            }
        };
        let waited = progress.wait_for(|progress| !matches!(progress, Progress::Behind { .. }));
        let reached = tokio::select! {
            reached = waited => reached.map(|it| it.clone()).unwrap_or_default(),
            () = marking => {
                tracing::warn!(stream, "publishers are blocked: it may not be read to its end");
                return Ok(());
            }
            () = sleep_until(until) => Progress::default(),
        };
        match reached {
            Progress::CaughtUp => Ok(()),
            Progress::Denied(denied) => Err(FleetError::Denied(denied)),
            Progress::Behind { .. } => {
                let problem = match &*progress.borrow() {
                    Progress::Behind { problem: Some(problem) } => problem.clone(),
                    _ => "the broker is slow to send it".to_owned(),
                };
                Err(FleetError::Behind { stream, waited: patience, problem })
            }
        }
    }
}

impl Membership {
    /// Says good-bye: everything is settled.
    pub(crate) async fn leave(self) {
        let Self { member, tasks } = self;
        // Its queue goes with them, before the last word on it.
        drop(tasks);
        member.tell(|worker, incarnation, at| Life::Goodbye { worker, incarnation, at }).await;
    }
}
