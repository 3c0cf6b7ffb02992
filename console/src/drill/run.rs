//! Runs a drill: publishes tasks, injects the faults of the schedule, and waits until every task has taken effect.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::{Context, anyhow};
use garenne_chaos::{
    BROKER_RESTART_TIMEOUT, BrokerRestart, Engine, FaultInjector, FaultProxy, FaultSchedule, Load,
    PublishProgress, Publishers, WorkerCommand, WorkerFleet,
    audit::{EFFECTS_FILE, Expected},
    create_run_folder,
};
use garenne_common::exit::{Exit, Failure};
use garenne_protocol::task::Kind;
use tokio::time::Instant;

use super::{cli::DrillArgs, proxied_url::ProxiedUrl};
use crate::{chaos, interrupt::Interrupts, operator::Operator, output, table::grouped, ticks::ticks};

/// Interval between two polls of the engine.
const TICK: Duration = Duration::from_millis(50);
/// Ticks between two counts of the effects, when every task was executed.
const TICKS_PER_COUNT: u64 = 10;
/// Ticks between two lines of progress.
const TICKS_PER_LINE: u64 = 40;
/// The file for the effects that workers report, in the run's folder.
pub(super) const EFFECTS_FILE_NAME: &str = "effects.ndjson";

/// A drill under way.
pub(super) struct Drill<'a> {
    pub(super) operator: &'a Operator,
    pub(super) args: &'a DrillArgs,
    pub(super) dir: PathBuf,
    pub(super) engine: Engine,
    pub(super) published: Arc<PublishProgress>,
    schedule: FaultSchedule<f64>,
    /// The workers' URL through the proxy of `--cuts`, if the URL came from a file.
    proxied: Option<ProxiedUrl>,
}

/// Runs the drill.
///
/// # Errors
/// One line and an exit code; [`Exit::Failed`] also if a task was lost or an effect doubled.
pub async fn run(operator: &Operator, args: &DrillArgs, config: Option<&Path>) -> Result<Exit, Failure> {
    let kind = Kind::parse(&args.kind).map_err(|error| Failure::new(Exit::Usage, error))?;
    serde_json::from_str::<serde_json::Value>(&args.payload)
        .map_err(|error| Failure::new(Exit::Usage, format_args!("--payload is not JSON: {error}")))?;
    let mut interrupts = Interrupts::catch()?;
    let version = chaos::ensure_topology(operator).await?;
    let dir = create_run_folder(args.report.as_deref(), "garenne-drill")?;
    let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
    let load = Load {
        broker: operator.broker.clone(),
        names: operator.names.clone(),
        kind,
        payload: args.payload.clone().into_bytes(),
        id_prefix: format!("drill-{}-{run}", args.seed),
        tasks: args.tasks,
        publishers: args.publishers,
        rate: args.rate,
    };
    let mut drill = Drill::start(operator, args, dir, config).await?;
    let publishers = load.start(&drill.published);
    tokio::select! {
        ended = drill.until_complete(publishers) => ended?,
        () = interrupts.recv() => {
            eprintln!("interrupted: the tasks are not audited");
            return Ok(Exit::Interrupted);
        }
    }
    drill.conclude(format!("RabbitMQ {version} at {}", operator.broker.address())).await
}

impl<'a> Drill<'a> {
    async fn start(
        operator: &'a Operator,
        args: &'a DrillArgs,
        dir: PathBuf,
        config: Option<&Path>,
    ) -> Result<Self, Failure> {
        let mut launcher = chaos::launcher(operator, &dir, config)?;
        let effects = dir.join(EFFECTS_FILE_NAME);
        launcher.environment.push((EFFECTS_FILE.to_owned(), effects.into_os_string()));
        let restart = args
            .faults
            .broker_restart
            .clone()
            .map(|command| BrokerRestart { broker: operator.broker.clone(), command });
        let settings = &operator.settings;
        let url = settings.worker_amqp_url.as_ref().unwrap_or(&settings.common.amqp_url);
        let (mut through, mut proxy, mut proxied) = (url.clone(), None, None);
        if args.faults.cuts > 0 {
            let (started, through_proxy) = proxy_for(url.expose()).await?;
            through = through_proxy.parse().map_err(anyhow::Error::msg)?;
            if let Some(source) = url.file() {
                let written = ProxiedUrl::write(source, started.address(), &dir)?;
                through.read_from(written.file());
                proxied = Some(written);
            }
            proxy = Some(started);
        }
        launcher.environment.push(chaos::url_variable("GARENNE_AMQP_URL", &through));
        let command = match &args.worker {
            Some(command) => WorkerCommand::Shell(command.clone()),
            None => chaos::stock_worker(operator, &["--enable-bench"], None),
        };
        let fleet = WorkerFleet::start(launcher, command, args.workers)?;
        eprintln!(
            "drilling {} workers with {} tasks, seed {}; files in {}",
            args.workers,
            grouped(args.tasks),
            args.seed,
            dir.display()
        );
        Ok(Self {
            operator,
            args,
            dir,
            engine: Engine::new(fleet, FaultInjector::new(args.faults.pause_for, restart, proxy)),
            published: Arc::default(),
            schedule: FaultSchedule::seeded(args.seed, args.faults.faults()),
            proxied,
        })
    }

    /// Injects the faults that are due until every task is published and has taken effect, or no progress is made.
    ///
    /// An execution does not suffice: its worker or the broker may have been killed before the result was stored. The
    /// task is delivered again then, perhaps after all others.
    async fn until_complete(&mut self, mut publishers: Publishers) -> Result<(), Failure> {
        let mut ticks = ticks(TICK);
        let mut broker_lost: Option<Instant> = None;
        for tick in 1_u64.. {
            ticks.tick().await;
            while let Some(ended) = publishers.try_join_next() {
                let ended = ended.context("publisher failed")?.context("publisher failed")?;
                ended.map_err(|error| anyhow!("cannot publish: {error}"))?;
            }
            self.poll_engine()?;
            self.proxied.iter().for_each(ProxiedUrl::refresh);
            let share = self.engine.account.expected().len() as f64 / self.args.tasks as f64;
            while let Some(step) = self.schedule.due(share) {
                self.engine.inject(step)?;
            }
            let all_published = publishers.is_empty() && self.schedule.is_over();
            let stalled = self.engine.account.stalled_for();
            if self.engine.is_idle() {
                if stalled > self.args.patience {
                    break;
                }
                let all_executed = all_published && self.engine.account.open() == 0;
                if all_executed && tick.is_multiple_of(TICKS_PER_COUNT) {
                    self.count_outcomes().await?;
                    let unresolved = self.engine.account.unresolved();
                    if unresolved == 0 {
                        break;
                    }
                    output::note(format_args!(
                        "all tasks were executed; {} have no effect yet and will be executed again",
                        grouped(unresolved as u64)
                    ));
                }
            }
            if tick.is_multiple_of(TICKS_PER_LINE) {
                self.print_progress();
                if broker_lost.is_some() || stalled > TICK * TICKS_PER_LINE as u32 {
                    self.check_broker(&mut broker_lost).await?;
                }
            }
        }
        Ok(())
    }

    /// Without a broker no task can be executed: `--patience` counts from its return.
    async fn check_broker(&mut self, lost: &mut Option<Instant>) -> Result<(), Failure> {
        match self.operator.connect().await {
            Ok(connection) => {
                Operator::leave(connection).await;
                *lost = None;
            }
            Err(error) if lost.get_or_insert_with(Instant::now).elapsed() > BROKER_RESTART_TIMEOUT => {
                return Err(error.into());
            }
            Err(_) => self.engine.account.excuse_stall(),
        }
        Ok(())
    }

    pub(super) fn print_progress(&self) {
        let account = &self.engine.account;
        eprintln!(
            "{:>5.0}s  published {}  done {}  open {}  faults {}  workers {}",
            self.engine.seconds(),
            grouped(account.expected().len() as u64),
            grouped(account.executed_tasks() as u64),
            grouped(account.open() as u64),
            self.engine.timeline.events.len(),
            self.engine.fleet.workers().len()
        );
    }

    fn poll_engine(&mut self) -> Result<(), Failure> {
        let confirmed = self.published.take_confirmed();
        let expected = confirmed.into_iter().map(|id| Expected { id, reading: None });
        self.engine.acknowledged(expected.collect());
        for exit in self.engine.poll()? {
            if let Some(replacement) = &exit.replacement {
                output::note(format_args!("{} crashed ({}), starting {replacement}", exit.name, exit.status));
            }
        }
        Ok(())
    }
}

/// A proxy in front of the broker, and the workers' URL through it.
async fn proxy_for(url: &str) -> Result<(FaultProxy, String), Failure> {
    if !url.starts_with("amqp://") {
        return Err(Failure::new(
            Exit::Usage,
            "--cuts needs an amqp:// URL: the workers connect to a proxy, which a TLS certificate does not name",
        ));
    }
    Ok(FaultProxy::for_url(url).await?)
}
