//! `garenne dashboard`: the fleet in a browser, its queues for Prometheus, and the number of workers for
//! an autoscaler.
//!
//! Reading needs no login. Actions need a login with the admin token.

mod actions;
mod app_state;
mod dead_letters;
mod feed;
mod metrics;
mod page;
mod problem;
mod routes;
mod session;

use std::{io::ErrorKind, net::SocketAddr, sync::Arc};

use clap::Args;
use garenne_common::{
    config::{ConfigError, read_secret_file},
    exit::{Exit, Failure},
    shutdown::{Command, Mode},
    telemetry::{
        Metrics,
        admin::{self, AdminParts, Control, GroupCommand, Readiness},
        tracing::init,
    },
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::Notify};
use tokio_util::sync::CancellationToken;

use crate::{interrupt::interrupts, monitor::FleetMonitor, operator::Operator};
use app_state::AppState;

/// `garenne dashboard`.
#[derive(Args, Clone, Debug, Default)]
pub struct DashboardArgs {
    /// Address to listen on [default: 127.0.0.1:9465]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
}

/// Serves until it is stopped by a signal or by its admin port. It waits for a broker that cannot be reached.
///
/// # Errors
/// A port cannot be bound, or the token file cannot be read.
pub async fn run(operator: Operator) -> Result<Exit, Failure> {
    init(&operator.settings.common)?;
    let common = operator.settings.common.clone();
    let token = common.admin_token_file.as_deref();
    let token = token.map(|path| read_secret_file("admin_token_file", path)).transpose()?;
    let listener = bind(operator.settings.dashboard.listen).await?;
    let admin_port = admin::bind(&common).await?;
    let mut interrupts = interrupts()?;
    let address = listener.local_addr().map_err(anyhow::Error::from)?;
    let metrics = Metrics::new("console");
    let (monitor, _tasks) = FleetMonitor::start(operator);
    metrics::register(&metrics, &monitor);
    let stop = Arc::new(Notify::new());
    let control = Arc::new(DashboardControl { monitor: Arc::clone(&monitor), stop: Arc::clone(&stop) });
    let parts = AdminParts {
        metrics: metrics.clone(),
        readiness: Arc::clone(&control) as _,
        control,
        mode: Mode::default(),
    };
    let closing = CancellationToken::new();
    let admin = tokio::spawn(admin::serve(admin_port, parts, closing.clone().cancelled_owned()));
    if token.is_none() {
        tracing::info!("actions are disabled: set --admin-token-file to a file with a login token");
    }
    let app = Arc::new(AppState::new(monitor, metrics, token));
    let page =
        tokio::spawn(admin::serve_router(listener, routes::router(app), closing.clone().cancelled_owned()));
    tracing::info!(address = %format_args!("http://{address}"), "dashboard is listening");
    tokio::select! {
        _ = interrupts.recv() => {}
        () = stop.notified() => {}
    }
    closing.cancel();
    let _ = page.await;
    let _ = admin.await;
    Ok(Exit::Done)
}

async fn bind(listen: SocketAddr) -> Result<TcpListener, ConfigError> {
    TcpListener::bind(listen).await.map_err(|error| ConfigError::Invalid {
        setting: "dashboard.listen".to_owned(),
        value: listen.to_string(),
        origin: "--listen or GARENNE_DASHBOARD__LISTEN".to_owned(),
        problem: match error.kind() {
            ErrorKind::AddrInUse => "the address is already in use: choose another port".to_owned(),
            ErrorKind::AddrNotAvailable => "the address is not assigned to this host".to_owned(),
            _ => error.to_string(),
        },
    })
}

/// Readiness and control of the dashboard for its admin port.
struct DashboardControl {
    monitor: Arc<FleetMonitor>,
    stop: Arc<Notify>,
}

impl Readiness for DashboardControl {
    fn ready(&self) -> Result<(), Vec<String>> {
        self.monitor.latest().map(drop).map_err(|problem| vec![problem])
    }
}

impl Control for DashboardControl {
    fn command(&self, command: Command) {
        if matches!(command, Command::Shutdown(_) | Command::Escalate) {
            self.stop.notify_one();
        }
    }

    fn pool(&self) -> Value {
        json!({ "lanes": {} })
    }

    fn stop_task(&self, _id: &str) -> bool {
        false
    }

    fn group(&self, _group: &str, _command: GroupCommand) -> bool {
        false
    }
}
