//! A worker of a history, across its restarts.

use std::{sync::Arc, time::Duration};

use garenne::{RetryPolicy, TaskOptions, Worker, WorkerConfig, simulation::SimulatedWorker};
use garenne_common::shutdown::{Command, Mode, Receipt};

use crate::{
    connection::Role,
    history::StopMode,
    id::OwnerId,
    net::{Client, ConsumeLink, Net, PublishLink},
    plan::{DEADLINE, LONG, SHORT, Work},
    work::{PlannedSink, run},
};

/// A place for a worker, which has the same name after a restart.
pub(super) struct Slot {
    config: WorkerConfig,
    seed: u64,
    has_sink: bool,
    worker: Option<(SimulatedWorker, OwnerId)>,
    starts: u64,
}

impl Slot {
    pub(super) fn new(number: u8, seed: u64, config: &WorkerConfig) -> Self {
        let config = WorkerConfig { worker_id: Some(format!("w{number}")), ..config.clone() };
        let has_sink = seed & 16 != 0;
        Self { config, seed: seed.rotate_left(number.into()), has_sink, worker: None, starts: 0 }
    }

    /// The process, while the worker runs.
    pub(super) fn owner(&self) -> Option<OwnerId> {
        self.worker.as_ref().map(|it| it.1)
    }

    pub(super) fn is_running(&self) -> bool {
        self.worker.is_some()
    }

    /// Starts the worker, unless it runs.
    pub(super) fn start(&mut self, net: &Net) {
        if self.worker.is_some() {
            return;
        }
        self.starts += 1;
        let name = self.config.worker_id.as_deref().unwrap_or_default();
        let name = format!("{name}.{}", self.starts);
        let owner = net.with(|state| state.broker.add_owner(&name, Role::Worker));
        let client = Client { net: net.clone(), owner };
        let retry = RetryPolicy::default().first(Duration::from_millis(300)).cap(Duration::from_secs(4));
        let (has_sink, of_short, of_long) = (self.has_sink, client.clone(), client.clone());
        let mut builder = Worker::builder(self.config.clone())
            .handle_kind(
                SHORT,
                move |context, work: Work| run(of_short.clone(), context, work, has_sink),
                TaskOptions::short().retry(retry.clone()),
            )
            .handle_kind(
                LONG,
                move |context, work: Work| run(of_long.clone(), context, work, has_sink),
                TaskOptions::long().deadline(DEADLINE).retry(retry),
            );
        if has_sink {
            builder = builder.sink(PlannedSink::new(client.clone(), self.seed ^ self.starts));
        }
        let blocked = Arc::default();
        let publish = Arc::new(PublishLink::new(client.clone(), Arc::clone(&blocked)));
        let worker = SimulatedWorker::start(builder, ConsumeLink::new(client), publish, blocked)
            .expect("the settings are valid");
        self.worker = Some((worker, owner));
    }

    pub(super) fn stop(&mut self, net: &Net, mode: StopMode) {
        let Some((worker, owner)) = &self.worker else { return };
        net.with(|state| state.watch.told_to_stop(*owner, mode, state.broker.now));
        worker.command(Command::Shutdown(match mode {
            StopMode::Light => Mode::Light,
            StopMode::Soft => Mode::Soft,
            StopMode::SoftTimeout => Mode::SoftTimeout,
            StopMode::Hard => Mode::Hard,
        }));
    }

    pub(super) fn pause(&self, is_paused: bool) {
        if let Some((worker, _)) = &self.worker {
            worker.command(if is_paused { Command::Quiet } else { Command::Resume });
        }
    }

    /// Ends the tasks of a process that crashed.
    pub(super) fn crash(&mut self) {
        if let Some((worker, _)) = self.worker.take() {
            worker.crash();
        }
    }

    /// Checks the receipt of a worker that has stopped. Returns what is wrong with it.
    pub(super) async fn reap(&mut self, net: &Net) -> Option<String> {
        let (worker, owner) = self.worker.take_if(|(worker, _)| worker.has_ended())?;
        let receipt = match worker.receipt().await? {
            Ok(receipt) => receipt,
            // The broker was away for longer than the worker waits at its start.
            Err(_) => {
                net.with(|state| state.exit(owner));
                return None;
            }
        };
        net.with(|state| {
            state.broker.remark(|| receipt.to_line());
            let (running, unacked) = (state.watch.running(owner), state.broker.unacked_of(owner));
            // A worker that is stopped while it starts leaves its connections to the end of its process.
            state.exit(owner);
            let (counts, flushes) = (state.broker.counts_of(owner), state.watch.flushes(owner));
            let (settled, returned) = settled(&receipt);
            let name = state.broker.name_of(owner);
            let wrong = if !receipt.balances() {
                "does not balance"
            } else if receipt.abandoned as usize > running {
                "abandons more than runs"
            } else if unacked > 0 {
                "leaves deliveries unacked"
            } else if counts.acked > settled + receipt.lost_settlements {
                "has fewer settlements than the broker"
            } else if counts.requeued > returned + receipt.lost_settlements + flushes {
                "has handed back fewer deliveries than the broker saw"
            } else if receipt.delivered > counts.delivered {
                "has more deliveries than the broker sent"
            } else {
                return None;
            };
            let line = receipt.to_line();
            Some(format!(
                "the receipt of {name} {wrong}: {line}; {running} run, {unacked} unacked, {counts:?}"
            ))
        })
    }
}

/// Deliveries that were taken off their queues, and those that were handed back.
fn settled(receipt: &Receipt) -> (u64, u64) {
    (receipt.acked + receipt.retried + receipt.dead + receipt.quarantined, receipt.requeued)
}
