//! One run: a worker fleet, the faults injected into it, and the account of its tasks.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};

use crate::{
    audit::{Account, Expected},
    fault::Injected,
    fault_injector::FaultInjector,
    fault_schedule::FaultStep,
    timeline::Timeline,
    worker_fleet::WorkerFleet,
    worker_process::WorkerExit,
};

/// A run under way. The caller publishes tasks and decides when a fault is due; the engine keeps the fleet at its
/// size and the account complete. It does nothing between two calls of [`poll`](Self::poll).
#[derive(Debug)]
pub struct Engine {
    /// The workers.
    pub fleet: WorkerFleet,
    /// The verdict on every task.
    pub account: Account,
    /// The events, with their times.
    pub timeline: Timeline,
    injector: FaultInjector,
    /// Tasks that stopping workers requeued, from their receipts.
    pub requeued: u64,
    /// Workers that ended although nothing stopped them.
    pub crashes: u64,
}

impl Engine {
    /// A run that starts now with a fleet that is already there.
    pub fn new(fleet: WorkerFleet, injector: FaultInjector) -> Self {
        let timeline = Timeline::starting(SystemTime::now());
        let mut account = Account::default();
        account.excuse_stall();
        Self { fleet, account, timeline, injector, requeued: 0, crashes: 0 }
    }

    /// Whether no fault lasts that keeps tasks from being executed.
    pub fn is_idle(&self) -> bool {
        self.injector.is_idle()
    }

    /// Seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.timeline.seconds(SystemTime::now())
    }

    /// Injects a fault. Returns nothing if it has no target.
    ///
    /// # Errors
    /// If the replacement of a stopped worker cannot be started.
    pub fn inject(&mut self, step: FaultStep) -> Result<Option<Injected>> {
        self.injector.inject(step, &mut self.fleet, &mut self.timeline)
    }

    /// Adds tasks that were acknowledged to their sender.
    pub fn acknowledged(&mut self, tasks: Vec<Expected>) {
        self.timeline.published(SystemTime::now(), tasks.len() as u64);
        self.account.acknowledged(tasks);
    }

    /// Reads the execution logs, replaces crashed workers, and ends the faults whose time is up. Returns the workers
    /// that have ended since the last call.
    ///
    /// # Errors
    /// If the run cannot continue.
    pub fn poll(&mut self) -> Result<Vec<WorkerExit>> {
        self.read_logs()?;
        let exits = self.fleet.replace_crashed()?;
        for exit in &exits {
            self.requeued += requeued(exit);
            if exit.stopped_for.is_none() {
                self.crashes += 1;
                self.timeline.record(None, exit.name.clone(), exit.replacement.clone());
            }
        }
        self.injector.poll(&self.fleet, &mut self.timeline)?;
        Ok(exits)
    }

    /// Stops all workers in order, kills those that do not end within `limit`, and reads the rest of their logs.
    ///
    /// # Errors
    /// If a log cannot be read.
    pub async fn stop(&mut self, limit: Duration) -> Result<Vec<WorkerExit>> {
        let exits = self.fleet.stop(limit).await?;
        self.requeued += exits.iter().map(requeued).sum::<u64>();
        self.read_logs()?;
        Ok(exits)
    }

    fn read_logs(&mut self) -> Result<()> {
        let lines = self.fleet.executions().context("cannot read an execution log")?;
        let now = SystemTime::now();
        for execution in &lines {
            self.timeline.executed(execution, now);
        }
        self.account.executed(lines);
        Ok(())
    }
}

fn requeued(exit: &WorkerExit) -> u64 {
    exit.receipt.as_ref().map_or(0, |receipt| receipt.requeued)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{audit::Audit, fault::Fault, launcher::Launcher, worker_fleet::WorkerCommand};

    #[tokio::test]
    async fn a_killed_worker_is_replaced_and_its_tasks_are_in_the_account() {
        let dir = tempfile::tempdir().unwrap();
        let command = "sh -c 'echo \"{\\\"task_id\\\":\\\"{name}\\\"}\"; exec sleep 60'";
        let launcher = Launcher::without_console(dir.path());
        let fleet = WorkerFleet::start(launcher, WorkerCommand::Shell(command.to_owned()), 1).unwrap();
        let mut engine = Engine::new(fleet, FaultInjector::new(Duration::ZERO, None, None));
        let expected = ["worker-1", "worker-2"].map(|id| Expected { id: id.to_owned(), reading: None });
        engine.acknowledged(expected.into());
        while engine.account.open() == 2 {
            assert!(engine.poll().unwrap().is_empty());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let injected = engine.inject(FaultStep { fault: Fault::Kill, pick: 0 }).unwrap().unwrap();
        assert_eq!(
            (injected.target.as_str(), injected.replacement.as_deref()),
            ("worker-1", Some("worker-2"))
        );
        while engine.account.open() == 1 {
            engine.poll().unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Without a proxy there is no network to cut.
        assert_eq!(engine.inject(FaultStep { fault: Fault::Cut, pick: 0 }).unwrap(), None);
        engine.stop(Duration::from_secs(60)).await.unwrap();
        engine.timeline.conclude();
        assert!(Audit::of(&engine.account).totals.kept());
        assert_eq!((engine.crashes, engine.timeline.events.len()), (0, 1));
        assert_eq!(engine.timeline.executed.iter().sum::<u64>(), 2);
    }
}
