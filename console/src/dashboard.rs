//! `garenne dashboard`: the fleet and its devices in a browser, its queues for Prometheus, the number of workers for an
//! autoscaler, and stored readings.
//!
//! Commands need a login as an operator; reading needs one if the settings say so.

mod access;
mod actions;
mod alarms;
mod app_state;
mod dead_letters;
mod feed;
mod job;
mod job_book;
mod jobs;
mod letter_filter;
mod login_limit;
mod metrics;
mod page;
mod problem;
mod proxy_login;
mod read_api;
mod routes;
mod session;
mod tasks;
mod test_task;
mod user;
mod workers_database;

use std::{
    io::ErrorKind,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex as StdMutex},
};

use clap::Args;
use garenne_common::{
    config::{ConfigError, Invalid, flag},
    exit::{Exit, Failure},
    shutdown::{Mode, stop_requested},
    supervise,
    telemetry::{
        Metrics,
        admin::{self, AdminPort, Process, ServerTls},
        tracing::init,
    },
};
use garenne_operator::{interrupt::Interrupts, operator::Operator};
use tokio::{
    net::TcpListener,
    sync::{Mutex, mpsc},
};
use tokio_util::sync::CancellationToken;

use crate::{monitor::FleetMonitor, settings::ConsoleConfig};
use access::Access;
use app_state::AppState;
use job_book::JobBook;
use workers_database::WorkersDatabase;

/// `garenne dashboard`.
#[derive(Args, Clone, Debug, Default)]
pub struct DashboardArgs {
    /// Address to listen on [default: 127.0.0.1:9465]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Database of the workers, for the pages and addresses with readings
    #[arg(long, value_name = "URL")]
    pub postgres_url: Option<String>,
    /// File of the people who may log in, as `garenne operators hash` prints its lines
    #[arg(long, value_name = "FILE")]
    pub operators: Option<PathBuf>,
    /// Require a login for viewing too
    #[arg(long)]
    pub require_login: bool,
    /// Refuse all commands, and write nothing to the broker
    #[arg(long)]
    pub read_only: bool,
    /// Networks of the proxies whose headers name the person, such as 10.1.2.0/24
    #[arg(long, value_name = "CIDR,…")]
    pub trusted_proxies: Option<String>,
    /// PEM file with the certificate chain; with it and --tls-key the port speaks TLS only
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with the certificate's key
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
}

impl DashboardArgs {
    /// The settings that the flags give.
    pub fn settings(&self) -> toml::Table {
        let mut dashboard = toml::Table::new();
        let file = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        flag(&mut dashboard, "listen", self.listen.as_ref());
        flag(&mut dashboard, "operators", file(&self.operators).as_ref());
        flag(&mut dashboard, "trusted_proxies", self.trusted_proxies.as_ref());
        for (setting, given) in [("require_login", self.require_login), ("read_only", self.read_only)] {
            if given {
                dashboard.insert(setting.to_owned(), true.into());
            }
        }
        flag(&mut dashboard, "tls_cert", file(&self.tls_cert).as_ref());
        flag(&mut dashboard, "tls_key", file(&self.tls_key).as_ref());
        let mut own = toml::Table::new();
        flag(&mut own, "postgres_url", self.postgres_url.as_ref());
        if !dashboard.is_empty() {
            own.insert("dashboard".to_owned(), dashboard.into());
        }
        own
    }
}

/// Serves until it is stopped by a signal or by its admin port. It waits for a broker that cannot be reached.
pub async fn run(mut operator: Operator, settings: ConsoleConfig) -> Result<Exit, Failure> {
    init(&operator.settings.common)?;
    let common = operator.settings.common.clone();
    let metrics = Metrics::new("console");
    let logins = metrics::logins(&metrics).map_err(anyhow::Error::from)?;
    let access = Access::new(&settings, logins)?;
    operator.read_only = access.is_read_only();
    let ConsoleConfig { dashboard, scale, .. } = settings;
    let tls = ServerTls::load("dashboard.tls", dashboard.tls_cert, dashboard.tls_key)?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let database = WorkersDatabase::of(&operator)?;
    let listener = bind(dashboard.listen).await?;
    let admin_port = admin::bind(&common).await?;
    let mut interrupts = Interrupts::catch()?;
    let address = listener.local_addr().map_err(anyhow::Error::from)?;
    let (monitor, _tasks) = FleetMonitor::start(operator, scale.objective);
    metrics::register(&metrics, &monitor).map_err(anyhow::Error::from)?;
    let (commands, mut received) = mpsc::channel(1);
    let admin = AdminPort::open(admin_port, metrics.clone(), Mode::default(), commands, "starting");
    admin.begin(Arc::clone(&monitor) as _);
    let closing = CancellationToken::new();
    if monitor.operator.read_only {
        tracing::info!(
            "commands are disabled, nothing is written to the broker: set --operators to a file of people who may log in"
        );
    }
    let app = Arc::new(AppState {
        monitor,
        metrics,
        access,
        scale,
        database,
        walk: Mutex::default(),
        look: Mutex::default(),
        listed: StdMutex::default(),
        jobs: JobBook::default(),
    });
    let visited = Arc::clone(&app);
    let page = admin::serve_router(
        listener,
        routes::router(Arc::clone(&app)),
        tls,
        move |extensions, headers| visited.access.visitor(extensions, headers),
        closing.clone().cancelled_owned(),
    );
    let page = supervise::essential("dashboard page", closing.clone(), page).spawn();
    tracing::info!(address = %format_args!("{scheme}://{address}"), "dashboard is listening");
    tokio::select! {
        () = interrupts.recv() => {}
        () = stop_requested(&mut received) => {}
        () = closing.cancelled() => {}
    }
    closing.cancel();
    let page = page.await;
    app.jobs.close().await;
    admin.close().await;
    page.map(|()| Exit::Done).map_err(|failure| Failure::new(Exit::Failed, failure))
}

async fn bind(listen: SocketAddr) -> Result<TcpListener, ConfigError> {
    TcpListener::bind(listen).await.map_err(|error| {
        let problem = match error.kind() {
            ErrorKind::AddrInUse => "the address is already in use: choose another port",
            ErrorKind::AddrNotAvailable => "the address is not assigned to this host",
            _ => &error.to_string(),
        };
        Invalid::new("dashboard.listen", listen, problem).given_by("--listen or GARENNE_DASHBOARD__LISTEN")
    })
}

impl Process for FleetMonitor {
    fn ready(&self) -> Result<(), Vec<String>> {
        self.latest().map(drop).map_err(|problem| vec![format!("the queues cannot be read: {problem}")])
    }
}
