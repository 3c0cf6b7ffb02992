//! The end of a demo: the queues drain, the fleet stops, and every reading is accounted for.

use std::time::Duration;

use anyhow::Context;
use garenne_chaos::audit::{Audit, Store};
use garenne_common::{
    exit::{Exit, Failure},
    stdout,
};

use super::{
    findings::{self, Pass},
    gateway::STOP_TIMEOUT,
    recording::Recording,
    run::{Demo, TICK, TICKS_PER_LINE},
};
use crate::{audit_table::totals_table, dead, interrupt::Interrupts, output, ticks::ticks};

/// A drain without progress for this long is over.
const DRAIN_STALL_TIMEOUT: Duration = Duration::from_secs(20);
/// The same if the broker's queues are empty.
const IDLE_STALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit for the requests that a stopping replay has sent.
const REPLAY_STOP_TIMEOUT: Duration = Duration::from_secs(15);

impl Demo<'_> {
    /// Waits until every acknowledged reading is stored, stops the fleet, and prints the account.
    pub(super) async fn conclude(
        mut self,
        store: Option<Store>,
        interrupts: &mut Interrupts,
    ) -> Result<Exit, Failure> {
        let finish = async {
            self.stop_replays().await?;
            self.screen.say("\n>> No more readings: the workers finish what is queued.");
            self.drain(store.as_ref()).await?;
            self.screen.end();
            let found = self.found(store.as_ref()).await;
            for exit in self.engine.stop(STOP_TIMEOUT).await? {
                self.report_exit(&exit);
            }
            self.gateway.process.stop(STOP_TIMEOUT).await;
            if let Some(mqtt) = &mut self.mqtt {
                mqtt.stop(STOP_TIMEOUT).await;
            }
            Ok::<_, Failure>(found)
        };
        let found = tokio::select! {
            finished = finish => finished?,
            () = interrupts.recv() => {
                self.screen.end();
                eprintln!("interrupted again: the readings are not audited");
                return Ok(Exit::Interrupted);
            }
        };
        self.count_outcomes(store.as_ref()).await?;
        let audit = Audit::of(&self.engine.account);
        let file = self.dir.join("audit.ndjson");
        audit.write_findings(&file).with_context(|| format!("cannot write {}", file.display()))?;
        let acknowledged_by = if self.mqtt.is_some() { "Mosquitto" } else { "the gateway" };
        stdout::print(format_args!(
            "\nAudit of the readings that {acknowledged_by} acknowledged:\n{}  one line per reading: {}\n",
            totals_table(&audit.totals, "readings", "stored"),
            file.display()
        ))?;
        output::lines(&found)?;
        self.queue_reader.close().await;
        if audit.totals.sent == 0 {
            return Err(Failure::new(Exit::Failed, "no reading was sent: there is nothing to audit"));
        }
        Ok(if audit.totals.kept() { Exit::Done } else { Exit::Failed })
    }

    /// The workers' findings in the first pass. Empty if the readings cannot be queried.
    async fn found(&self, store: Option<&Store>) -> String {
        let (Some(store), Recording::Movable(recording), Some(start)) =
            (store, &self.recording, self.first_pass)
        else {
            return String::new();
        };
        let pass = Pass { start, speed: self.speed };
        match findings::find(&self.http, &self.gateway.url, store, recording, &pass).await {
            Ok(text) => text,
            // The account does not depend on it.
            Err(error) => format!("\nThe workers' findings are not available: {error:#}\n"),
        }
    }

    async fn stop_replays(&mut self) -> Result<(), Failure> {
        for replay in self.main.iter_mut().chain(&mut self.bursts) {
            replay.process.stop(REPLAY_STOP_TIMEOUT).await;
        }
        self.read_receipts()
    }

    /// Waits until every acknowledged reading is stored or a dead letter, or no progress is made.
    async fn drain(&mut self, store: Option<&Store>) -> Result<(), Failure> {
        let mut ticks = ticks(TICK);
        for tick in 1_u64.. {
            ticks.tick().await;
            self.poll()?;
            if tick.is_multiple_of(TICKS_PER_LINE) {
                self.draw().await;
                if self.engine.account.open() == 0 {
                    self.count_outcomes(store).await?;
                }
            }
            if !self.engine.is_idle() {
                self.engine.account.excuse_stall();
            }
            let account = &self.engine.account;
            let is_resolved = account.open() == 0 && account.unresolved() == 0;
            let stalled = account.stalled_for();
            if is_resolved || (self.idle && stalled > IDLE_STALL_TIMEOUT) || stalled > DRAIN_STALL_TIMEOUT {
                self.draw().await;
                return Ok(());
            }
        }
        Ok(())
    }

    /// Counts the stored readings, and reads the dead letters if readings are missing.
    async fn count_outcomes(&mut self, store: Option<&Store>) -> Result<(), Failure> {
        let account = &mut self.engine.account;
        if let Some(store) = store {
            account.set_effects(Some(store.effects(account.expected()).await?));
        }
        if account.unresolved() > 0 {
            account.set_dead(dead::reasons(self.operator).await?);
        }
        Ok(())
    }
}
