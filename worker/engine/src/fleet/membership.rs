//! Joining and leaving the fleet: the streams that a worker reads, its control queue, and its records in the
//! lifecycle log.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;
use garenne_amqp::{BrokerError, PublishError};
use garenne_common::{
    backoff::Backoff,
    exit::{Exit, HasExit},
    shutdown::Mode,
    supervise::{self, Failure},
    telemetry::Metrics,
};
use garenne_protocol::rights::MissingRight;
use humantime::format_duration;
use serde::Deserialize;
use thiserror::Error;
use tokio::{sync::watch, task::JoinSet, time::timeout};

use super::member::Member;
use crate::consumer::{
    ConsumeBroker,
    control_queue::ControlQueue,
    stream_reader::{Progress, StreamReader},
};

/// The tasks of a member: stream readers, the control queue, and the start record's repetition.
type MembershipTasks = JoinSet<Result<(), Failure>>;

/// How long a starting worker waits for its control queue before it works without one.
const CONTROL_QUEUE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a stream is read if no mark can be published because the broker blocks publishers.
const UNMARKED_READ_TIME: Duration = Duration::from_secs(3);

/// A command that arrives on the worker's control queue.
#[derive(Debug, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub(crate) enum Command {
    Shutdown { mode: Option<Mode> },
    Quiet,
    Resume,
    Beat,
}

/// Why a worker cannot join the fleet.
///
/// Without the directives it would start tasks that an operator stopped. Without the lifecycle log it could not
/// distinguish a crashed worker from one that requeued its tasks.
#[derive(Debug, Error)]
pub enum FleetError {
    /// The broker does not allow it to read a stream.
    #[error(transparent)]
    Denied(BrokerError),
    /// The broker does not allow it to publish to a stream, and thus to no retry queue either.
    #[error("cannot publish to stream {stream:?}: {right}; see the rights of a worker in docs/settings.md")]
    MayNotPublish {
        /// The name of the stream.
        stream: String,
        /// What its user lacks.
        right: Box<MissingRight>,
    },
    /// It could not read a stream to its end in time.
    #[error("stream {stream:?} was not read to its end within {}: {problem}", format_duration(*.waited))]
    Behind {
        /// The name of the stream.
        stream: String,
        /// The timeout.
        waited: Duration,
        /// The last problem with reading it.
        problem: String,
    },
}

impl HasExit for FleetError {
    fn exit(&self) -> Exit {
        match self {
            Self::Denied(error) => error.exit(),
            Self::MayNotPublish { .. } => Exit::Denied,
            Self::Behind { .. } => Exit::BrokerUnavailable,
        }
    }
}

/// A worker's membership in the fleet. Dropping it aborts its background tasks.
pub(crate) struct Membership {
    pub(crate) member: Arc<Member>,
    tasks: MembershipTasks,
}

impl Membership {
    /// Reads the streams to their end, for at most `read_timeout`, and then publishes the start record. The bindings of the
    /// worker's control queue are checked every `check_interval`.
    ///
    /// `stop_task` is called for each task that a directive stops, `on_command` for each command on the worker's
    /// control queue.
    pub(crate) async fn join(
        member: Member,
        broker: impl ConsumeBroker,
        metrics: Metrics,
        read_timeout: Duration,
        check_interval: Duration,
        on_command: impl Fn(Command) + Send + Sync + 'static,
        stop_task: impl Fn(&str) + Send + 'static,
    ) -> Result<Self, FleetError> {
        let (names, member) = (member.names.clone(), Arc::new(member));
        let mut tasks = JoinSet::new();
        let this = Arc::clone(&member);
        let on_directive = move |record: &[u8]| this.read_directive(record, &stop_task);
        let streams = (&broker, &metrics, &member);
        let directives = StreamRead::start(&mut tasks, streams, names.directives(), on_directive);
        let this = Arc::clone(&member);
        let on_event = move |record: &[u8]| this.read_lifecycle(record);
        let lifecycle = StreamRead::start(&mut tasks, streams, names.lifecycle(), on_event);
        tokio::try_join!(
            directives.until_caught_up(&member, read_timeout),
            lifecycle.until_caught_up(&member, read_timeout)
        )?;
        let this = Arc::clone(&member);
        let (declared, mut is_declared) = watch::channel(false);
        let on_declared = async move || {
            this.publish_hello().await;
            declared.send_replace(true);
        };
        let on_message = move |body: &[u8]| match serde_json::from_slice(body) {
            Ok(command) => on_command(command),
            Err(error) => tracing::warn!(%error, "ignored an invalid command"),
        };
        let worker = member.worker.to_string();
        let (on_command, reported) = (on_message, None);
        let (problem, mut last_problem) = watch::channel(String::new());
        let queue = ControlQueue {
            broker,
            metrics,
            names,
            worker,
            check_interval,
            reported,
            problem,
            on_declared,
            on_command,
        };
        supervise::restarting("control-queue", queue, |queue| queue.run().boxed()).spawn_into(&mut tasks);
        let this = Arc::clone(&member);
        supervise::restarting("membership", this, |member| member.maintain().boxed()).spawn_into(&mut tasks);
        // A right that is missing does not appear by waiting.
        let refused = last_problem.wait_for(|problem| problem.contains("ACCESS_REFUSED"));
        let is_undeclared = tokio::select! {
            biased;
            _ = is_declared.wait_for(|declared| *declared) => false,
            _ = refused => true,
            () = tokio::time::sleep(CONTROL_QUEUE_TIMEOUT) => true,
        };
        if is_undeclared {
            let problem = last_problem.borrow();
            let advice =
                if problem.contains("RESOURCE_LOCKED") { "; is the worker id used twice?" } else { "" };
            tracing::warn!(
                worker = &*member.worker,
                problem = *problem,
                "no command reaches this worker, because its control queue cannot be declared{advice}"
            );
        }
        Ok(Self { member, tasks })
    }

    /// Publishes the stop record. Every delivery must be settled before.
    pub(crate) async fn leave(self) {
        let Self { member, tasks } = self;
        // The control queue's consumer must not publish a start record after the stop record.
        drop(tasks);
        member.publish_goodbye().await;
    }
}

struct StreamRead {
    stream: String,
    progress: watch::Receiver<Progress>,
}

impl StreamRead {
    /// Starts a task that reads a stream. `on_record` returns whether the record is this worker's first mark.
    fn start<B: ConsumeBroker>(
        tasks: &mut MembershipTasks,
        (broker, metrics, member): (&B, &Metrics, &Arc<Member>),
        stream: String,
        on_record: impl FnMut(&[u8]) -> bool + Send + 'static,
    ) -> Self {
        let (sender, progress) = watch::channel(Progress::default());
        let (broker, metrics, name) = (broker.clone(), metrics.clone(), stream.clone());
        let (member, state_of) = (Arc::clone(member), stream.clone());
        let on_state = move |problem, is_new| member.note_stream(&state_of, problem, is_new);
        let reader = StreamReader {
            broker,
            metrics,
            stream: name,
            next: None,
            progress: sender,
            on_record,
            on_state,
            is_new: false,
        };
        supervise::restarting("stream-reader", reader, |reader| reader.run().boxed()).spawn_into(tasks);
        Self { stream, progress }
    }

    /// Publishes a mark to the stream and waits until it is read.
    async fn until_caught_up(self, member: &Member, read_timeout: Duration) -> Result<(), FleetError> {
        let Self { stream, mut progress } = self;
        // Completes only if no mark can be published.
        let not_marked = async {
            let mut backoff = Backoff::default();
            loop {
                match member.publish_mark(&stream).await {
                    Ok(()) => std::future::pending().await,
                    // An alarm for memory may end only once more workers run, so a worker must be able to start.
                    Err(PublishError::Blocked) => {
                        tokio::time::sleep(UNMARKED_READ_TIME).await;
                        return None;
                    }
                    // A right that is missing from the start does not appear by waiting.
                    Err(PublishError::Denied(refusal)) if let Some(right) = MissingRight::of(&refusal) => {
                        return Some(right);
                    }
                    Err(error) => tracing::debug!(%error, stream, "cannot publish a mark, retrying"),
                }
                tokio::time::sleep(backoff.next_wait()).await;
            }
        };
        let finished = progress.wait_for(|progress| !matches!(progress, Progress::Behind { .. }));
        tokio::select! {
            biased;
            _ = timeout(read_timeout, finished) => {}
            right = not_marked => {
                if let Some(right) = right {
                    return Err(FleetError::MayNotPublish { stream, right: Box::new(right) });
                }
                tracing::warn!(stream, "publishers are blocked, so the stream may not be read to its end");
                return Ok(());
            }
        }
        let problem = match &*progress.borrow() {
            Progress::CaughtUp => return Ok(()),
            Progress::Denied(denied) => return Err(FleetError::Denied(denied.clone())),
            Progress::Behind { problem } => problem.clone(),
        };
        let problem = problem.unwrap_or_else(|| "the broker sends it too slowly".to_owned());
        Err(FleetError::Behind { stream, waited: read_timeout, problem })
    }
}
