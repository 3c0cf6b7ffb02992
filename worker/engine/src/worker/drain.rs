//! A running worker and its shutdown.
//!
//! Shutdown order: intake, pools, sinks and copies, settlements, connections, and the admin port last. Senders stop
//! before receivers.

use std::time::Duration;

use futures_util::future::join_all;
use garenne_amqp::{BrokerError, HeartbeatPublisher, Publisher};
use garenne_common::{
    shutdown::{Command, Mode},
    supervise::TaskHandle,
    telemetry::{Traces, admin::AdminPort, traces::LAST_EXPORT},
};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{handler_runtime::HandlerRuntime, lane::Lane, pool_stop};
use crate::{
    budget::SETTLE_TIME,
    consumer::{ConsumerConnection, Intake},
    fleet::Membership,
    settings::WorkerConfig,
    settlement::Settler,
    status::Status,
};

/// Timeout for each step of closing once everything is settled.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Everything that a running worker consists of.
pub(super) struct Running {
    pub(super) lanes: Vec<Lane>,
    pub(super) membership: Membership,
    pub(super) heartbeats: HeartbeatPublisher,
    pub(super) intake: watch::Sender<Intake>,
    /// Receives an error if the broker denies a lane from the start.
    pub(super) denials: mpsc::Receiver<BrokerError>,
    pub(super) settler: std::sync::Arc<Settler>,
    pub(super) publisher: Publisher,
    pub(super) connection: ConsumerConnection,
    pub(super) force_close: CancellationToken,
    pub(super) handlers: HandlerRuntime,
    pub(super) traces: Traces,
    pub(super) admin: AdminPort<Status>,
}

impl Running {
    /// Handles `quiet` and `resume` until a command stops the worker. If all command senders are dropped, the
    /// worker stops too.
    ///
    /// # Errors
    /// If the broker denies a lane from the start. The worker should then stop and report it.
    pub(super) async fn until_shutdown(
        &mut self,
        commands: &mut mpsc::Receiver<Command>,
    ) -> Result<Mode, BrokerError> {
        loop {
            let command = tokio::select! {
                command = commands.recv() => command,
                Some(denied) = self.denials.recv() => return Err(denied),
            };
            match command {
                Some(Command::Shutdown(mode)) => return Ok(mode),
                Some(Command::Escalate) => return Ok(Mode::Hard),
                Some(Command::Quiet) => {
                    tracing::info!("quiet: not consuming new messages");
                    self.intake.send_replace(Intake::Quiet);
                }
                Some(Command::Resume) => {
                    tracing::info!("resumed");
                    self.intake.send_replace(Intake::Open);
                }
                None => return Ok(Mode::SoftTimeout),
            }
        }
    }

    /// Shuts down in this mode; commands may escalate it. Returns whether the mode escalated, by a command or
    /// because the shutdown timeout passed.
    pub(super) async fn drain(
        self,
        mode: Mode,
        commands: &mut mpsc::Receiver<Command>,
        config: &WorkerConfig,
    ) -> bool {
        let (shutdown_timeout, grace) = (config.shutdown_timeout, config.hard_grace);
        tracing::info!(%mode, "stopping");
        let started = Instant::now();
        self.intake.send_replace(Intake::Closed);
        self.stop_pools(mode, shutdown_timeout, grace);
        let final_mode = self.until_settled(mode, commands, shutdown_timeout, grace).await;
        let timed_out = mode == Mode::SoftTimeout && started.elapsed() >= shutdown_timeout;
        self.close().await;
        timed_out || final_mode != mode
    }

    /// Waits for the pools, the sinks and the copies, while commands may escalate the mode. Returns the final mode.
    async fn until_settled(
        &self,
        mode: Mode,
        commands: &mut mpsc::Receiver<Command>,
        shutdown_timeout: Duration,
        grace: Duration,
    ) -> Mode {
        let started = Instant::now();
        let mut current_mode = mode;
        let settled = async {
            join_all(self.lanes.iter().map(|lane| lane.pool.stopped())).await;
            // All tasks have ended. An unavailable sink or broker is waited for as long as the mode allows; then
            // its deliveries are requeued.
            let remaining = match mode {
                Mode::Light | Mode::Soft => shutdown_timeout,
                Mode::SoftTimeout => {
                    (shutdown_timeout + grace).saturating_sub(started.elapsed()).max(SETTLE_TIME / 2)
                }
                Mode::Hard => grace.saturating_sub(started.elapsed()).max(SETTLE_TIME / 2),
            };
            if timeout(remaining, self.settler.idle()).await.is_err() {
                self.force_close.cancel();
            }
        };
        let mut settled = std::pin::pin!(settled);
        loop {
            let command = tokio::select! {
                () = &mut settled => return current_mode,
                Some(command) = commands.recv() => command,
            };
            let requested = match command {
                Command::Escalate => Mode::Hard,
                Command::Shutdown(requested) => requested,
                Command::Quiet | Command::Resume => continue,
            };
            if current_mode.escalates_to(requested) {
                tracing::warn!(mode = %requested, "shutdown escalated");
                current_mode = requested;
                self.stop_pools(requested, shutdown_timeout, grace);
            }
            if requested == Mode::Hard {
                self.force_close.cancel();
            }
        }
    }

    fn stop_pools(&self, mode: Mode, shutdown_timeout: Duration, grace: Duration) {
        let stop = |lane: &Lane| lane.pool.begin_shutdown(pool_stop(mode, shutdown_timeout, grace));
        self.lanes.iter().for_each(stop);
    }

    async fn close(self) {
        let Self {
            lanes,
            membership,
            heartbeats,
            settler,
            publisher,
            connection,
            force_close,
            handlers,
            traces,
            admin,
            ..
        } = self;
        let ack_writers: Vec<_> = lanes.iter().map(|lane| lane.ack_writers.clone()).collect();
        let mut consumers: Vec<_> = lanes.into_iter().flat_map(|lane| lane.consumers).collect();
        if timeout(CLOSE_TIMEOUT, join_all(&mut consumers)).await.is_err() {
            force_close.cancel();
            tracing::warn!("the broker does not answer; it will requeue unsettled messages itself");
            consumers.iter().for_each(TaskHandle::abort);
        }
        // The ack writer of an aborted consumer ends with it, and counts unconfirmed settlements as lost.
        let ack_writers_ended = ack_writers.iter().map(async |ack_writers| {
            ack_writers.close();
            ack_writers.wait().await;
        });
        let _ = timeout(SETTLE_TIME, join_all(ack_writers_ended)).await;
        let _ = timeout(CLOSE_TIMEOUT, settler.idle()).await;
        let closing = async {
            let _ = timeout(CLOSE_TIMEOUT, membership.leave()).await;
            heartbeats.stop().await;
            let _ = timeout(CLOSE_TIMEOUT, publisher.close()).await;
            let _ = timeout(CLOSE_TIMEOUT, connection.close()).await;
        };
        // All spans have ended, so the last export can run beside the closing of connections.
        tokio::join!(closing, traces.close(LAST_EXPORT));
        drop(handlers);
        admin.close().await;
    }
}
