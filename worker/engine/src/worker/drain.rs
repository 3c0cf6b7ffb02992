//! A worker at work, and its way down: intake, pools, sinks and copies, settlements, connections,
//! and the admin port last. Senders stop before receivers.

use std::time::Duration;

use futures_util::future::join_all;
use garenne_amqp::{BrokerError, HeartbeatPublisher, Publisher};
use garenne_common::{
    shutdown::{Command, Mode},
    telemetry::{Traces, admin::AdminPort, traces::LAST_EXPORT},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{lane::Lane, pool_stop, start::HandlerRuntime};
use crate::{
    budget::FLUSH,
    consumer::{ConsumerConnection, Intake},
    fleet::Membership,
    settings::WorkerConfig,
    settlement::Settler,
    status::Status,
};

/// How long closing may take once everything is settled; a broker that does not answer is left.
const CLOSING: Duration = Duration::from_secs(5);

/// Everything a running worker consists of.
pub(super) struct Running {
    pub(super) lanes: Vec<Lane>,
    pub(super) membership: Membership,
    pub(super) heartbeats: HeartbeatPublisher,
    pub(super) intake: watch::Sender<Intake>,
    /// Lanes that the broker denied from the start.
    pub(super) denials: mpsc::Receiver<BrokerError>,
    pub(super) settler: std::sync::Arc<Settler>,
    pub(super) publisher: Publisher,
    pub(super) link: ConsumerConnection,
    pub(super) force_close: CancellationToken,
    pub(super) handlers: HandlerRuntime,
    pub(super) traces: Traces,
    pub(super) admin: AdminPort<Status>,
}

impl Running {
    /// Obeys `quiet` and `resume` until a command stops the worker. Nobody left to command it means
    /// that it should stop, too.
    ///
    /// # Errors
    /// When the broker denies a lane from the start: the worker should stop and say so.
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
                    tracing::info!("quiet: no new messages are taken");
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

    /// Stops in this mode; commands may make it harder on the way. Answers whether it got harder, by
    /// a command or because the timeout passed.
    pub(super) async fn drain(
        self,
        mode: Mode,
        commands: &mut mpsc::Receiver<Command>,
        config: &WorkerConfig,
    ) -> bool {
        let (patience, grace) = (config.shutdown_timeout, config.hard_grace);
        tracing::info!(%mode, "stopping");
        let began = Instant::now();
        self.intake.send_replace(Intake::Closed);
        self.stop_pools(mode, patience, grace);
        let ended_in = self.until_settled(mode, commands, patience, grace).await;
        let timed_out = mode == Mode::SoftTimeout && began.elapsed() >= patience;
        self.close().await;
        timed_out || ended_in != mode
    }

    /// Waits for the pools, the sinks and the copies; a command may make it harder meanwhile. Answers
    /// the mode it ended in.
    async fn until_settled(
        &self,
        mode: Mode,
        commands: &mut mpsc::Receiver<Command>,
        patience: Duration,
        grace: Duration,
    ) -> Mode {
        let began = Instant::now();
        let mut now_in = mode;
        let settled = async {
            join_all(self.lanes.iter().map(|lane| lane.pool.stopped())).await;
            // What ran is done. A sink or a broker that is away is waited for as long as the mode
            // allows, then the deliveries go back.
            let rest = match mode {
                Mode::Light | Mode::Soft => patience,
                Mode::SoftTimeout => (patience + grace).saturating_sub(began.elapsed()).max(FLUSH / 2),
                Mode::Hard => grace.saturating_sub(began.elapsed()).max(FLUSH / 2),
            };
            if timeout(rest, self.settler.idle()).await.is_err() {
                self.force_close.cancel();
            }
        };
        let mut settled = std::pin::pin!(settled);
        loop {
            let command = tokio::select! {
                () = &mut settled => return now_in,
                Some(command) = commands.recv() => command,
            };
            let asked = match command {
                Command::Escalate => Mode::Hard,
                Command::Shutdown(asked) => asked,
                Command::Quiet | Command::Resume => continue,
            };
            if now_in.escalates_to(asked) {
                tracing::warn!(mode = %asked, "stopping harder");
                now_in = asked;
                self.stop_pools(asked, patience, grace);
            }
            if asked == Mode::Hard {
                self.force_close.cancel();
            }
        }
    }

    fn stop_pools(&self, mode: Mode, patience: Duration, grace: Duration) {
        self.lanes.iter().for_each(|lane| lane.pool.begin_shutdown(pool_stop(mode, patience, grace)));
    }

    async fn close(self) {
        let Self {
            lanes,
            membership,
            heartbeats,
            settler,
            publisher,
            link,
            force_close,
            handlers,
            traces,
            admin,
            ..
        } = self;
        let ack_writers: Vec<_> = lanes.iter().map(|lane| lane.ack_writers.clone()).collect();
        let mut consumers: Vec<_> = lanes.into_iter().flat_map(|lane| lane.consumers).collect();
        if timeout(CLOSING, join_all(&mut consumers)).await.is_err() {
            force_close.cancel();
            tracing::warn!("the broker does not answer: what is unsettled comes back by itself");
            consumers.iter().for_each(JoinHandle::abort);
        }
        // An aborted consumer's ack_writer ends with it, and counts what nobody heard of as lost.
        let counted = ack_writers.iter().map(async |ack_writers| {
            ack_writers.close();
            ack_writers.wait().await;
        });
        let _ = timeout(FLUSH, join_all(counted)).await;
        let _ = timeout(CLOSING, settler.idle()).await;
        let closing = async {
            let _ = timeout(CLOSING, membership.leave()).await;
            heartbeats.stop().await;
            let _ = timeout(CLOSING, publisher.close()).await;
            let _ = timeout(CLOSING, link.close()).await;
        };
        // Everything that a span could tell of is over by now.
        tokio::join!(closing, traces.close(LAST_EXPORT));
        drop(handlers);
        admin.close().await;
    }
}
