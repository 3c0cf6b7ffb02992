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
    shutdown::{Mode, stop_requested},
    supervise,
    telemetry::{
        Metrics,
        admin::{self, AdminPort, Process},
        tracing::init,
    },
};
use tokio::{
    net::TcpListener,
    sync::{Mutex, mpsc},
};
use tokio_util::sync::CancellationToken;

use crate::{interrupt::Interrupts, monitor::FleetMonitor, operator::Operator};
use app_state::AppState;
use session::Sessions;

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
    let mut interrupts = Interrupts::catch()?;
    let address = listener.local_addr().map_err(anyhow::Error::from)?;
    let metrics = Metrics::new("console");
    let (monitor, _tasks) = FleetMonitor::start(operator);
    metrics::register(&metrics, &monitor);
    let (commands, mut received) = mpsc::channel(1);
    let admin = AdminPort::open(admin_port, metrics.clone(), Mode::default(), commands, "starting");
    admin.begin(Arc::clone(&monitor) as _);
    let closing = CancellationToken::new();
    if token.is_none() {
        tracing::info!("actions are disabled: set --admin-token-file to a file with a login token");
    }
    let sessions = Sessions::new(token);
    let app = Arc::new(AppState { monitor, metrics, sessions, dead_letters: Mutex::default() });
    let page = admin::serve_router(listener, routes::router(app), closing.clone().cancelled_owned());
    let page = supervise::essential("dashboard page", closing.clone(), page).spawn();
    tracing::info!(address = %format_args!("http://{address}"), "dashboard is listening");
    tokio::select! {
        () = interrupts.recv() => {}
        () = stop_requested(&mut received) => {}
        () = closing.cancelled() => {}
    }
    closing.cancel();
    let page = page.await;
    admin.close().await;
    page.map(|()| Exit::Done).map_err(|failure| Failure::new(Exit::Failed, failure))
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

impl Process for FleetMonitor {
    fn ready(&self) -> Result<(), Vec<String>> {
        self.latest().map(drop).map_err(|problem| vec![problem])
    }
}
