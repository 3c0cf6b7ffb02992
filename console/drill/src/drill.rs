//! `garenne-drill run`: publishes tasks while faults are injected into a worker fleet, its broker and its network.
//!
//! The worker under test can be any program that reads `GARENNE_AMQP_URL` and `GARENNE_PREFIX` and writes one JSON
//! line with `task_id` to standard output for each task that it executes. Effects are counted in the file that
//! `DRILL_EFFECTS` names (one JSON line with `task_id` per effect), or in Postgres. With `--cuts` the workers reach the
//! broker through a proxy, which stalls and resets their connections.

use std::{path::Path, sync::Arc};

use garenne_common::{
    config::SecretUrl,
    exit::{Exit, Failure},
};
use garenne_operator::{operator::Operator, table::grouped};
use garenne_protocol::task::Kind;

use crate::{
    account::Expected,
    cli::RunArgs,
    engine::{Engine, FaultMeans},
    fault_proxy::FaultProxy,
    fleet::{STOCK_WORKER, WorkerCommand, WorkerFleet},
    load::Publishers,
    proxied_url::ProxiedUrl,
    report::Report,
    run::{Plan, Preparation, Run},
    schedule::{Schedule, Step},
    screen::Screen,
    sender::Sender,
};

/// Publishes the tasks of a drill.
pub(crate) struct Drill {
    publishers: Publishers,
    tasks: u64,
    /// The workers' URL through the proxy of `--cuts`, if the URL came from a file.
    proxied: Option<ProxiedUrl>,
}

impl Drill {
    /// Starts the workers and the publishers.
    pub(crate) async fn start<'a>(
        operator: &'a Operator,
        worker_url: &SecretUrl,
        args: &RunArgs,
        config: Option<&Path>,
    ) -> Result<Run<'a, Self>, Failure> {
        let kind = Kind::parse(&args.kind).map_err(|error| Failure::new(Exit::Usage, error))?;
        serde_json::from_str::<serde_json::Value>(&args.payload)
            .map_err(|error| Failure::new(Exit::Usage, format_args!("--payload is not JSON: {error}")))?;
        let (dir, sql) = (args.report.as_deref(), args.effects_sql.clone());
        let mut preparation = Preparation::new(operator, config, "garenne-drill", dir, sql).await?;
        let (mut proxy, mut proxied) = (None, None);
        if args.faults.cuts > 0 {
            let (started, through_proxy) = proxy_for(worker_url.expose()).await?;
            let mut through: SecretUrl = through_proxy.parse().map_err(anyhow::Error::msg)?;
            if let Some(source) = worker_url.file() {
                let written = ProxiedUrl::write(source, started.address(), &preparation.dir)?;
                through.read_from(written.file());
                proxied = Some(written);
            }
            preparation.launcher.set_url("GARENNE_AMQP_URL", &through);
            proxy = Some(Arc::new(started));
        } else {
            preparation.launcher.set_url("GARENNE_AMQP_URL", worker_url);
        }
        let command = match &args.worker {
            Some(command) => WorkerCommand::Shell(command.clone()),
            None => preparation.stock_worker(&["--enable-bench"], None),
        };
        let restart = preparation.broker_restart(args.faults.broker_restart.as_ref());
        let fleet = WorkerFleet::start(preparation.launcher.clone(), command, args.workers)?;
        let engine = Engine::new(fleet, FaultMeans { pause: args.faults.pause_for, restart, proxy });
        let screen = Screen::new();
        screen.say(&format!(
            "drilling {} workers with {} tasks, seed {}; files in {}",
            args.workers,
            grouped(args.tasks),
            args.seed,
            preparation.dir.display()
        ));
        let plan = Plan {
            schedule: Schedule::seeded(args.seed, args.faults.faults()),
            report: Report {
                seed: Some(args.seed),
                worker: args.worker.clone().unwrap_or_else(|| STOCK_WORKER.to_owned()),
                faults: args.faults.clone(),
                ..Report::default()
            },
            patience: args.patience,
            json: args.json,
        };
        let drill = Self { publishers: Publishers::start(operator, args, kind), tasks: args.tasks, proxied };
        Ok(Run::new(preparation, plan, engine, drill, screen))
    }
}

impl Sender for Drill {
    const TASKS: &'static str = "tasks";
    const EFFECT: &'static str = "took effect";

    async fn poll(&mut self, engine: &mut Engine, _is_calm: bool) -> Result<(), Failure> {
        self.proxied.iter().for_each(ProxiedUrl::refresh);
        let confirmed = self.publishers.poll()?;
        engine.acknowledged(confirmed.into_iter().map(|id| Expected { id, reading: None }).collect());
        Ok(())
    }

    fn progress(&mut self, engine: &Engine) -> Option<f64> {
        Some(engine.account.expected().len() as f64 / self.tasks as f64)
    }

    async fn step(&mut self, step: Step, engine: &mut Engine) -> Result<(), Failure> {
        if let Step::Fault(fault, pick) = step {
            engine.inject(fault, pick)?;
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.publishers.are_done()
    }

    fn published_again(&self) -> Option<u64> {
        Some(self.publishers.repeated())
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
