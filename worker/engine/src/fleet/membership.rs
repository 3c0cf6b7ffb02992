//! Joining the fleet and leaving it: the streams that a worker reads, its control queue, and its
//! records in the lifecycle log.

use std::{sync::Arc, time::Duration};

use garenne_amqp::{Backoff, BrokerError, PublishError, Publisher};
use garenne_common::{
    exit::{Exit, HasExit},
    shutdown::Mode,
};
use garenne_protocol::topology::Names;
use humantime::format_duration;
use serde::Deserialize;
use thiserror::Error;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};

use super::{
    member::{Identity, Member},
    wire::BrokerWire,
};
use crate::consumer::{
    ConsumerConnection, control_queue,
    stream_reader::{self, Progress},
};

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

/// Why a worker cannot become a member. Without the stop directives it would start what an operator
/// stopped; without the lifecycle it could not tell a crash from a hand-back.
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

/// The tasks that keep a member informed; dropped, they end.
pub(crate) struct Membership {
    pub(crate) member: Arc<Member>,
    tasks: JoinSet<()>,
}

impl Membership {
    /// Reads the streams to their end, for at most `patience`, then lets the fleet know. `stop` hears of
    /// each task that an order ends, as it comes; `obey` of what arrives on the worker's own queue.
    ///
    /// # Errors
    /// [`FleetError`].
    pub(crate) async fn join(
        identity: Identity,
        names: Names,
        link: ConsumerConnection,
        publisher: Publisher,
        patience: Duration,
        obey: impl Fn(Command) + Send + Sync + 'static,
        stop: impl Fn(&str) + Send + 'static,
    ) -> Result<Self, FleetError> {
        let wire = BrokerWire { link: link.clone(), publisher, names: names.clone() };
        let member = Arc::new(Member::new(identity, names, Box::new(wire)));
        let mut tasks = JoinSet::new();
        let this = Arc::clone(&member);
        let directive = move |record: &[u8]| this.read_directive(record, &stop);
        let directives = read(&mut tasks, &link, member.names().directives(), directive);
        let this = Arc::clone(&member);
        let life = move |record: &[u8]| this.read_life(record);
        let lifecycle = read(&mut tasks, &link, member.names().lifecycle(), life);
        let both = async {
            tokio::try_join!(directives.caught_up(&member, patience), lifecycle.caught_up(&member, patience))
        };
        both.await?;
        let this = Arc::clone(&member);
        let (present, mut is_present) = watch::channel(false);
        let hello = async move || {
            this.hello().await;
            present.send_replace(true);
        };
        let command = move |body: &[u8]| match serde_json::from_slice(body) {
            Ok(command) => obey(command),
            Err(error) => tracing::warn!(%error, "unreadable command"),
        };
        let (names, worker) = (member.names().clone(), member.worker().to_owned());
        tasks.spawn(control_queue::run(link, names, worker, hello, command));
        let this = Arc::clone(&member);
        tasks.spawn(async move { this.keep_record().await });
        if timeout(APPEARANCE, is_present.wait_for(|present| *present)).await.is_err() {
            let worker = member.worker();
            tracing::warn!(worker, "no control queue: does another worker have this id?");
        }
        Ok(Self { member, tasks })
    }

    /// Says good-bye: everything is settled.
    pub(crate) async fn leave(self) {
        let Self { member, tasks } = self;
        // Its queue goes with them, before the last word on it.
        drop(tasks);
        member.goodbye().await;
    }
}

/// Begins to read a stream.
fn read(
    tasks: &mut JoinSet<()>,
    link: &ConsumerConnection,
    stream: String,
    take: impl FnMut(&[u8]) -> bool + Send + 'static,
) -> Reading {
    let (sender, progress) = watch::channel(Progress::default());
    tasks.spawn(stream_reader::follow(link.clone(), stream.clone(), sender, take));
    Reading { stream, progress }
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
