//! Runs a drill or a demo: injects the faults of the schedule, waits until every task has taken effect, and accounts for
//! all of them.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use garenne_common::exit::{Exit, Failure};
use garenne_operator::{
    dead, interrupt::Interrupts, operator::Operator, output, table::grouped, ticks::ticks,
};
use tokio::time::Instant;

use crate::{
    account::{EFFECTS_FILE, EffectSource, Effects, Store, Verdicts},
    engine::{BROKER_RESTART_TIMEOUT, BrokerRestart, Engine},
    fleet::{WorkerCommand, WorkerExit},
    launcher::{Launcher, create_run_folder},
    report::Report,
    schedule::Schedule,
    screen::Screen,
    sender::Sender,
};

/// Interval between two polls of the engine.
const TICK: Duration = Duration::from_millis(50);
/// Ticks between two counts of the effects, when every task was executed.
const TICKS_PER_COUNT: u64 = 10;
/// Ticks between two summaries.
const TICKS_PER_SUMMARY: u64 = 20;
/// Without progress for this long, the broker may be away, or the open tasks may be dead letters.
const STALL: Duration = Duration::from_secs(2);
/// Limit of the soft stop of all workers.
const STOP_TIMEOUT: Duration = Duration::from_secs(40);

/// What every run begins with.
pub(crate) struct Preparation<'a> {
    pub(crate) operator: &'a Operator,
    pub(crate) dir: PathBuf,
    pub(crate) launcher: Launcher,
    /// The broker and its version.
    broker: String,
    effects: Effects,
}

/// What is known of a run before it starts.
pub(crate) struct Plan {
    pub(crate) schedule: Schedule,
    /// What the report says of the run besides its results.
    pub(crate) report: Report,
    /// Time without progress after which unfinished tasks count as lost.
    pub(crate) patience: Duration,
    /// Whether the report is printed as JSON.
    pub(crate) json: bool,
}

/// A run under way.
pub(crate) struct Run<'a, S> {
    preparation: Preparation<'a>,
    plan: Plan,
    engine: Engine,
    sender: S,
    screen: Screen,
    /// Since when the broker refuses connections.
    broker_lost: Option<Instant>,
    /// The seconds, published and executed tasks of the last summary.
    summarized: (f64, u64, u64),
}

impl<'a> Preparation<'a> {
    /// Creates what is missing on the broker, and the folder of the run. `stem` begins its name.
    pub(crate) async fn new(
        operator: &'a Operator,
        config: Option<&Path>,
        stem: &str,
        dir: Option<&Path>,
        effects_sql: Option<String>,
    ) -> Result<Self, Failure> {
        let connection = operator.connect().await?;
        let version = operator.broker.version().await?;
        let ensured = garenne_amqp::declare::ensure(&connection, &operator.topology(version)).await;
        Operator::leave(connection).await;
        ensured?;
        let store = Store::connect(operator).await?;
        let dir = create_run_folder(dir, stem)?;
        let mut launcher = Launcher::new(operator, &dir, config)?;
        let effects = Effects { file: dir.join("effects.ndjson"), store, sql: effects_sql };
        launcher.set(EFFECTS_FILE, &effects.file);
        let broker = format!("RabbitMQ {version} at {}", operator.broker.address());
        Ok(Self { operator, dir, launcher, broker, effects })
    }

    /// `garenne-worker` with these arguments. It stores results in Postgres if the settings name one.
    pub(crate) fn stock_worker(&self, arguments: &[&str], first_admin_port: Option<u16>) -> WorkerCommand {
        let mut all = vec!["--shutdown-mode", "soft", "--sink", "stdout"];
        if self.effects.store.is_some() {
            all.extend(["--sink", "postgres"]);
        }
        all.extend(arguments);
        WorkerCommand::Stock { arguments: all.into_iter().map(Into::into).collect(), first_admin_port }
    }

    /// How the broker is restarted, if there is a command for it.
    pub(crate) fn broker_restart(&self, command: Option<&String>) -> Option<BrokerRestart> {
        let broker = self.operator.broker.clone();
        command.map(|command| BrokerRestart { broker, command: command.clone() })
    }
}

/// Runs what `start` starts, to its end or until it is interrupted.
pub(crate) async fn run<'a, S: Sender>(
    start: impl Future<Output = Result<Run<'a, S>, Failure>>,
) -> Result<Exit, Failure> {
    let mut interrupts = Interrupts::catch()?;
    let mut run = tokio::select! {
        run = start => run?,
        () = interrupts.recv() => return Ok(Exit::Interrupted),
    };
    loop {
        tokio::select! {
            exit = run.complete() => return exit,
            () = interrupts.recv() => if !run.sender.end_early() {
                run.screen.end();
                eprintln!("interrupted: the {} are not accounted for", S::TASKS);
                return Ok(Exit::Interrupted);
            }
        }
    }
}

impl<'a, S: Sender> Run<'a, S> {
    pub(crate) fn new(
        preparation: Preparation<'a>,
        plan: Plan,
        engine: Engine,
        sender: S,
        screen: Screen,
    ) -> Self {
        Self { preparation, plan, engine, sender, screen, broker_lost: None, summarized: (0.0, 0, 0) }
    }

    async fn complete(&mut self) -> Result<Exit, Failure> {
        self.until_resolved().await?;
        self.conclude().await
    }

    /// Injects the faults that are due until every task is acknowledged and has taken effect or is a dead letter, or no
    /// progress is made.
    ///
    /// An execution does not suffice: its worker or the broker may have been killed before the result was stored. The
    /// task is delivered again then, perhaps after all others.
    async fn until_resolved(&mut self) -> Result<(), Failure> {
        let mut ticks = ticks(TICK);
        for tick in 1_u64.. {
            ticks.tick().await;
            self.sender.poll(&mut self.engine, self.plan.schedule.is_over()).await?;
            for exit in self.engine.poll()? {
                self.tell(&exit);
            }
            while let Some(progress) = self.sender.progress(&self.engine)
                && let Some(step) = self.plan.schedule.due(progress)
            {
                self.sender.step(step, &mut self.engine).await?;
            }
            let summarizes = tick.is_multiple_of(TICKS_PER_SUMMARY);
            if summarizes {
                self.summarize();
            }
            if !self.engine.is_idle() || self.sender.may_pause() {
                self.engine.account.excuse_stall();
                continue;
            }
            let stalled = self.engine.account.stalled_for();
            if summarizes && (self.broker_lost.is_some() || stalled > STALL) {
                self.check_broker().await?;
            }
            if self.engine.account.stalled_for() > self.plan.patience {
                break;
            }
            let all_executed = self.engine.account.open() == 0 && tick.is_multiple_of(TICKS_PER_COUNT);
            let may_be_dead = summarizes && stalled > STALL && self.broker_lost.is_none();
            if self.sender.is_over() && (all_executed || may_be_dead) {
                self.count_outcomes().await?;
                let unresolved = self.engine.account.unresolved();
                if unresolved == 0 {
                    break;
                }
                if all_executed {
                    self.screen.say(&format!(
                        "all {} were executed; {} have no effect yet and will be executed again",
                        S::TASKS,
                        grouped(unresolved as u64)
                    ));
                }
            }
        }
        Ok(())
    }

    /// Without a broker no task can be executed: the patience begins with its return.
    async fn check_broker(&mut self) -> Result<(), Failure> {
        match self.preparation.operator.connect().await {
            Ok(connection) => {
                Operator::leave(connection).await;
                self.broker_lost = None;
            }
            Err(error)
                if self.broker_lost.get_or_insert_with(Instant::now).elapsed() > BROKER_RESTART_TIMEOUT =>
            {
                return Err(error.into());
            }
            Err(_) => self.engine.account.excuse_stall(),
        }
        Ok(())
    }

    fn tell(&self, exit: &WorkerExit) {
        match &exit.replacement {
            Some(replacement) => {
                self.screen.say(&format!("{} crashed ({}), starting {replacement}", exit.name, exit.status));
            }
            None => self.sender.tell_stopped(exit),
        }
    }

    fn summarize(&mut self) {
        let account = &self.engine.account;
        let (published, done) = (account.expected().len() as u64, account.executed_tasks() as u64);
        let now = (self.engine.seconds(), published, done);
        let before = std::mem::replace(&mut self.summarized, now);
        let rate = |count: u64, before_it: u64| {
            let per_second = count.saturating_sub(before_it) as f64 / (now.0 - before.0).max(1e-3);
            format!("{} ({}/s)", grouped(count), grouped(per_second.round() as u64))
        };
        let summary = format!(
            "{:>5.0}s  published {}  done {}  open {}  faults {}  workers {}",
            now.0,
            rate(published, before.1),
            rate(done, before.2),
            grouped(account.open() as u64),
            self.engine.timeline.events.len(),
            self.engine.fleet.workers().len()
        );
        self.screen.summary(&summary);
    }

    /// Stops the fleet, writes the report, and returns whether no task was lost or doubled.
    async fn conclude(&mut self) -> Result<Exit, Failure> {
        let seconds = self.engine.seconds();
        self.summarize();
        self.screen.end();
        let shown = self.sender.finish(self.preparation.effects.store.as_ref()).await;
        for exit in self.engine.stop(STOP_TIMEOUT).await? {
            self.tell(&exit);
        }
        let effects = self.count_outcomes().await?;
        self.engine.timeline.conclude();
        let verdicts = Verdicts::of(&self.engine.account);
        let report = Report {
            kept: verdicts.totals.kept(),
            broker: self.preparation.broker.clone(),
            seconds,
            totals: verdicts.totals,
            effects,
            executions: verdicts.by_executions(),
            published_again: self.sender.published_again(),
            requeued: self.engine.requeued,
            crashes: self.engine.crashes,
            timeline: self.engine.timeline.clone(),
            ..self.plan.report.clone()
        };
        let dir = &self.preparation.dir;
        report.write(&verdicts, dir)?;
        if self.plan.json {
            output::json(&format!("{}\n", report.json()?))?;
        } else {
            let (table, file) = (report.table(S::TASKS, S::EFFECT), dir.join("report.html"));
            output::lines(&format!("{table}{shown}\nreport: {}\n", file.display()))?;
        }
        if report.totals.sent == 0 {
            let nothing = format!("no {} were published: there is nothing to account for", S::TASKS);
            return Err(Failure::new(Exit::Failed, nothing));
        }
        Ok(if report.kept { Exit::Done } else { Exit::Failed })
    }

    /// Counts the effects, and reads the dead letters if tasks are missing among the effects.
    async fn count_outcomes(&mut self) -> Result<EffectSource, Failure> {
        let account = &mut self.engine.account;
        let (source, effects) = self.preparation.effects.count(account.expected()).await?;
        account.set_effects(effects);
        if account.unresolved() > 0 {
            account.set_dead(dead::reasons(self.preparation.operator).await?);
        }
        Ok(source)
    }
}
