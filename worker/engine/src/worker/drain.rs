//! A running worker and its shutdown.
//!
//! Shutdown order: intake, pools, sinks and copies, the sinks' background work, settlements, connections, and the admin
//! port last. Senders stop before receivers.

use std::{future::pending, sync::Arc, time::Duration};

use futures_util::future::{join, join_all};
use garenne_amqp::{BrokerError, HeartbeatPublisher};
use garenne_common::{
    shutdown::{Command, Mode},
    supervise::TaskHandle,
    telemetry::{admin::AdminPort, traces::LAST_EXPORT},
};
use garenne_pool::Stop;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{companion::Companions, consumers::Consumers, handler_runtime::HandlerRuntime};
use crate::{
    budget::SETTLE_TIME,
    consumer::{ConsumeBroker, Intake},
    fleet::Membership,
    settings::WorkerConfig,
    sink::BackgroundWork,
    status::Status,
};

/// Timeout for each step of closing once everything is settled.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Handles `quiet` and `resume` until a command stops the worker. Returns the mode of the stop.
pub(super) async fn requested_stop(
    commands: &mut mpsc::Receiver<Command>,
    intake: &watch::Sender<Intake>,
) -> Mode {
    loop {
        let requested = match commands.recv().await {
            Some(Command::Shutdown(mode)) => return mode,
            Some(Command::Escalate) => return Mode::Hard,
            Some(Command::Quiet) => {
                tracing::info!("quiet: not consuming new messages");
                Intake::Quiet
            }
            Some(Command::Resume) => {
                tracing::info!("resumed");
                Intake::Open
            }
            // The worker holds a sender itself until it has closed.
            None => pending().await,
        };
        intake.send_if_modified(|intake| {
            // A worker that stops does not consume again.
            let is_stopping = *intake == Intake::Closed;
            if !is_stopping {
                *intake = requested;
            }
            !is_stopping
        });
    }
}

/// A worker that consumes.
pub(super) struct Running<B> {
    pub(super) status: Arc<Status>,
    pub(super) consumers: Consumers<B>,
    /// Receives an error if the broker denies a queue from the start.
    pub(super) denials: mpsc::Receiver<BrokerError>,
    pub(super) intake: watch::Sender<Intake>,
    pub(super) membership: Membership,
    pub(super) background: BackgroundWork,
    pub(super) heartbeats: HeartbeatPublisher,
    pub(super) companions: Companions,
    pub(super) handlers: HandlerRuntime,
    /// [`None`] if nobody asked for it.
    pub(super) admin: Option<AdminPort>,
}

impl<B: ConsumeBroker> Running<B> {
    /// Runs until a command stops the worker. Fails if the broker denies a lane from the start: the worker should then
    /// stop and report it.
    pub(super) async fn until_shutdown(
        &mut self,
        commands: &mut mpsc::Receiver<Command>,
    ) -> Result<Mode, BrokerError> {
        tokio::select! {
            biased;
            mode = requested_stop(commands, &self.intake) => Ok(mode),
            Some(denied) = self.denials.recv() => Err(denied),
        }
    }

    /// Shuts down in this mode; commands may escalate it. Returns whether the mode escalated, by a command or
    /// because the shutdown timeout passed.
    pub(super) async fn drain(
        mut self,
        mode: Mode,
        commands: &mut mpsc::Receiver<Command>,
        config: &WorkerConfig,
    ) -> bool {
        tracing::info!(%mode, "stopping");
        let started = Instant::now();
        self.intake.send_replace(Intake::Closed);
        stop_pools(&self.status, mode, config);
        let final_mode = self.until_settled(mode, commands, config).await;
        let timed_out = mode == Mode::SoftTimeout && started.elapsed() >= config.shutdown_timeout;
        self.close(config.hard_grace).await;
        timed_out || final_mode != mode
    }

    /// Waits for the pools, the sinks, the copies and the sinks' background work, while commands may escalate the mode. Returns
    /// the final mode.
    async fn until_settled(
        &mut self,
        mode: Mode,
        commands: &mut mpsc::Receiver<Command>,
        config: &WorkerConfig,
    ) -> Mode {
        let Self { status, intake, background, .. } = self;
        let settler = &status.settler;
        let mut escalation = Escalation {
            mode,
            since: Instant::now(),
            commands,
            intake,
            stop_pools: |mode| stop_pools(status, mode, config),
            force_close: &settler.force_close,
        };
        escalation.until(join_all(status.lanes.iter().map(|lane| lane.pool.stopped()))).await;
        // All tasks have ended. An unavailable sink or broker is waited for as long as the mode allows; then its deliveries
        // are requeued.
        let remaining = time_to_settle(escalation.mode, escalation.since.elapsed(), config);
        let settled = async {
            settler.idle().await;
            background.stop().await;
        };
        if escalation.until(timeout(remaining, settled)).await.is_err() {
            settler.force_close.cancel();
        }
        escalation.mode
    }

    async fn close(self, grace: Duration) {
        let Self { status, consumers, membership, heartbeats, companions, handlers, admin, .. } = self;
        let Consumers { connection, foreign, ack_writers, mut tasks, .. } = consumers;
        let settler = &status.settler;
        if timeout(CLOSE_TIMEOUT, join_all(&mut tasks)).await.is_err() {
            settler.force_close.cancel();
            tracing::warn!("the broker does not answer; it will requeue unsettled messages itself");
            tasks.iter().for_each(TaskHandle::abort);
        }
        // The ack writer of an aborted consumer ends with it, and counts unconfirmed settlements as lost.
        ack_writers.close();
        let _ = timeout(SETTLE_TIME, ack_writers.wait()).await;
        let _ = timeout(CLOSE_TIMEOUT, settler.idle()).await;
        let closing = async {
            let _ = timeout(CLOSE_TIMEOUT, membership.leave()).await;
            heartbeats.stop().await;
            let _ = timeout(CLOSE_TIMEOUT, settler.publisher.close()).await;
            if let Some(replies) = &settler.replies {
                let _ = timeout(CLOSE_TIMEOUT, replies.publisher.close()).await;
            }
            let _ = timeout(CLOSE_TIMEOUT, join(connection.close(), foreign.close())).await;
        };
        // All spans have ended, so the last export can run beside the closing of connections.
        tokio::join!(closing, settler.traces.close(LAST_EXPORT), companions.stop(grace));
        drop(handlers);
        if let Some(admin) = admin {
            admin.close().await;
        }
    }
}

/// How long sinks, copies and background work are waited for when all tasks have ended, `elapsed` after the stop in this mode
/// began.
fn time_to_settle(mode: Mode, elapsed: Duration, config: &WorkerConfig) -> Duration {
    let WorkerConfig { shutdown_timeout, hard_grace, .. } = *config;
    match mode {
        Mode::Light | Mode::Soft => shutdown_timeout,
        Mode::SoftTimeout => (shutdown_timeout + hard_grace).saturating_sub(elapsed).max(SETTLE_TIME / 2),
        Mode::Hard => hard_grace.saturating_sub(elapsed).max(SETTLE_TIME / 2),
    }
}

/// A stop whose mode commands may escalate.
struct Escalation<'a, S> {
    mode: Mode,
    /// When the stop in this mode began.
    since: Instant,
    commands: &'a mut mpsc::Receiver<Command>,
    intake: &'a watch::Sender<Intake>,
    /// Tells the pools of a stricter mode.
    stop_pools: S,
    force_close: &'a CancellationToken,
}

impl<S: Fn(Mode)> Escalation<'_, S> {
    /// Waits for a part of the stop, and executes commands meanwhile.
    async fn until<T>(&mut self, part: impl Future<Output = T>) -> T {
        let mut part = std::pin::pin!(part);
        loop {
            let requested = tokio::select! {
                biased;
                ended = &mut part => return ended,
                requested = requested_stop(self.commands, self.intake) => requested,
            };
            if self.mode.escalates_to(requested) {
                tracing::warn!(mode = %requested, "shutdown escalated");
                (self.mode, self.since) = (requested, Instant::now());
                (self.stop_pools)(requested);
            }
            if requested == Mode::Hard {
                self.force_close.cancel();
            }
        }
    }
}

fn stop_pools(status: &Status, mode: Mode, config: &WorkerConfig) {
    let WorkerConfig { shutdown_timeout: timeout, hard_grace: grace, .. } = *config;
    for lane in &status.lanes {
        lane.pool.begin_shutdown(match mode {
            Mode::Light => Stop::Light,
            Mode::Soft => Stop::Soft,
            Mode::SoftTimeout => Stop::SoftTimeout { timeout, grace },
            Mode::Hard => Stop::Hard { grace },
        });
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, future::pending};

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const GRACE: Duration = Duration::from_secs(10);

    #[test]
    fn a_stop_with_a_timeout_waits_for_sinks_and_copies_in_the_time_that_its_tasks_have_left() {
        let config = WorkerConfig { shutdown_timeout: MINUTE, hard_grace: GRACE, ..WorkerConfig::default() };
        let time = |mode, elapsed| time_to_settle(mode, elapsed, &config);
        assert_eq!(time(Mode::SoftTimeout, Duration::ZERO), MINUTE + GRACE);
        assert_eq!(time(Mode::SoftTimeout, MINUTE), GRACE);
        assert_eq!(time(Mode::SoftTimeout, MINUTE + GRACE), SETTLE_TIME / 2);
        assert_eq!(time(Mode::Hard, GRACE / 2), GRACE / 2);
        assert_eq!(time(Mode::Hard, GRACE), SETTLE_TIME / 2);
        // These wait for tasks without a timeout.
        assert_eq!([Mode::Light, Mode::Soft].map(|mode| time(mode, 10 * MINUTE)), [MINUTE; 2]);
    }

    #[tokio::test]
    async fn a_resume_ends_the_quiet_of_a_worker_and_not_its_stop() {
        let (commands, mut requested) = mpsc::channel(2);
        for (before, after) in [(Intake::Quiet, Intake::Open), (Intake::Closed, Intake::Closed)] {
            let intake = watch::Sender::new(before);
            commands.try_send(Command::Resume).unwrap();
            commands.try_send(Command::Shutdown(Mode::Light)).unwrap();
            assert_eq!(requested_stop(&mut requested, &intake).await, Mode::Light);
            assert_eq!(*intake.borrow(), after);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_that_is_escalated_to_hard_gives_up_what_waits_for_a_sink_or_a_broker() {
        let (commands, mut requested) = mpsc::channel(1);
        let (intake, force_close) = (watch::Sender::new(Intake::Closed), CancellationToken::new());
        let stops = RefCell::new(Vec::new());
        let mut escalation = Escalation {
            mode: Mode::Soft,
            since: Instant::now(),
            commands: &mut requested,
            intake: &intake,
            stop_pools: |mode| stops.borrow_mut().push(mode),
            force_close: &force_close,
        };
        let ended = escalation.until(timeout(MINUTE, pending::<()>())).await;
        assert!(ended.is_err() && !force_close.is_cancelled());
        commands.try_send(Command::Escalate).unwrap();
        assert_eq!(timeout(MINUTE, escalation.until(force_close.cancelled())).await, Ok(()));
        assert_eq!((escalation.mode, escalation.since.elapsed()), (Mode::Hard, Duration::ZERO));
        assert_eq!(stops.into_inner(), [Mode::Hard], "the pools are told once");
    }
}
