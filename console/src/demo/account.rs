//! The end of a demo: drain, stop, account for every reading.

use std::time::Duration;

use anyhow::Context;
use garenne_common::exit::{Exit, Failure};
use rustix::process::Signal;
use tokio::{sync::mpsc, time::Instant};

use super::{
    findings::{self, Pass},
    recording::Recording,
    run::{Demo, TICKS_A_LINE, ticks},
};
use crate::{
    audit::{Audit, Store, totals_table, write_findings},
    dead, output,
};

/// A drain that makes no progress for this long is over.
const STALLED: Duration = Duration::from_secs(20);
/// How long a replay may take to finish what it has under way.
const REPLAY_ENDS_WITHIN: Duration = Duration::from_secs(15);

impl Demo<'_> {
    /// Reads new receipts.
    pub(super) fn sent_more(&mut self) -> Result<(), Failure> {
        let mut new = Vec::new();
        if let Some(main) = &mut self.main {
            new = main.receipts.receipts().map_err(anyhow::Error::from)?;
            self.pass_sent += new.len() as u64;
        }
        for burst in &mut self.bursts {
            let arrived = burst.receipts.receipts().map_err(anyhow::Error::from)?;
            burst.arrived |= !arrived.is_empty();
            new.extend(arrived);
            if burst.process.ended().is_some() {
                burst.clean_up();
            }
        }
        for expected in new {
            if !self.evidence.executions.contains_key(&expected.id) {
                self.open.insert(expected.id.clone());
            }
            self.sent.push(expected);
        }
        Ok(())
    }

    /// Reads new lines of the execution logs.
    pub(super) fn done_more(&mut self) -> Result<(), Failure> {
        let logs = self.fleet.members.iter_mut().map(|member| &mut member.log);
        for log in logs.chain(&mut self.fleet.old_logs) {
            let lines = log.executions().map_err(anyhow::Error::from)?;
            for (id, _) in &lines {
                self.open.remove(id);
            }
            self.evidence.executed(lines);
        }
        Ok(())
    }

    /// Waits until everything acknowledged is done, stops the fleet and accounts for every reading.
    pub(super) async fn account(
        mut self,
        store: Option<Store>,
        interrupts: &mut mpsc::Receiver<()>,
    ) -> Result<Exit, Failure> {
        let finish = async {
            self.end_replays().await?;
            self.screen.say("\n>> No more readings: the workers finish what is queued.");
            self.drain().await?;
            self.screen.end();
            let found = self.found(store.as_ref()).await;
            for gone in self.fleet.stop().await {
                self.tell(&gone);
            }
            self.done_more()?;
            Ok::<_, Failure>(found)
        };
        let found = tokio::select! {
            finished = finish => finished?,
            _ = interrupts.recv() => {
                self.screen.end();
                eprintln!("interrupted again: no account");
                return Ok(Exit::Interrupted);
            }
        };
        if let Some(store) = store {
            let effects = store.effects(&self.sent).await.map_err(anyhow::Error::from)?;
            self.evidence.effects = Some(effects);
        }
        if !self.idle || !self.open.is_empty() {
            self.evidence.dead = dead::reasons(self.operator).await?;
        }
        let audit = Audit::of(&self.sent, &self.evidence);
        let file = self.dir.join("audit.ndjson");
        write_findings(&audit, &file).with_context(|| format!("{} cannot be written", file.display()))?;
        println!("\nThe account of every reading the gateway acknowledged:");
        print!("{}", totals_table(&audit.totals, "readings", "stored"));
        println!("  one line per reading: {}", file.display());
        output::lines(&found)?;
        self.watch.leave().await;
        if audit.totals.sent == 0 {
            return Err(Failure::new(Exit::Failed, "nothing was sent: the account proves nothing"));
        }
        Ok(if audit.totals.kept() { Exit::Done } else { Exit::Failed })
    }

    /// What the workers find in the first pass; nothing where it cannot be read back.
    async fn found(&self, store: Option<&Store>) -> String {
        let (Some(store), Recording::Movable(recording), Some(start)) =
            (store, &self.recording, self.first_pass)
        else {
            return String::new();
        };
        let pass = Pass { start, speed: self.speed };
        match findings::find(&self.http, &self.fleet.gateway_url, store, recording, &pass).await {
            Ok(text) => text,
            // The account does not depend on it.
            Err(error) => format!("\nThe fleet could not be asked what it found: {error:#}\n"),
        }
    }

    async fn end_replays(&mut self) -> Result<(), Failure> {
        for replay in self.main.iter_mut().chain(&mut self.bursts) {
            replay.process.signal(Signal::TERM);
            replay.process.end_within(REPLAY_ENDS_WITHIN).await;
            replay.clean_up();
        }
        self.sent_more()
    }

    async fn drain(&mut self) -> Result<(), Failure> {
        let mut ticks = ticks();
        let (mut least, mut progress) = (usize::MAX, Instant::now());
        for tick in 1_u64.. {
            ticks.tick().await;
            self.look_after().await?;
            if tick.is_multiple_of(TICKS_A_LINE) {
                self.draw().await?;
            }
            if self.open.len() < least {
                (least, progress) = (self.open.len(), Instant::now());
            }
            if self.open.is_empty()
                || (self.idle && progress.elapsed() > STALLED / 4)
                || progress.elapsed() > STALLED
            {
                self.draw().await?;
                return Ok(());
            }
        }
        Ok(())
    }
}
