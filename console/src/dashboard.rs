//! `garenne dashboard`: the fleet in a browser, its queues for Prometheus, and the number of workers for
//! an autoscaler.
//!
//! Looking is free; what changes something needs a login with the admin token.

mod actions;
mod answer;
mod metrics;
mod page;
mod routes;
mod session;
mod settings;
mod stream;

use std::{io::ErrorKind, net::SocketAddr, sync::Arc};

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

use crate::{interrupt::interrupts, operator::Operator, scope::Scope};
pub use settings::DashboardConfig;

/// Serves until it is told to stop.
///
/// # Errors
/// A port that cannot be had, or a token file that cannot be read. A broker that is away is waited for.
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
    let (scope, _watching) = Scope::start(operator);
    metrics::register(&metrics, &scope);
    let told = Arc::new(Notify::new());
    let state = Arc::new(State { scope: Arc::clone(&scope), told: Arc::clone(&told) });
    let parts = AdminParts {
        metrics: metrics.clone(),
        readiness: Arc::clone(&state) as _,
        control: state,
        mode: Mode::default(),
    };
    let closing = CancellationToken::new();
    let admin = tokio::spawn(admin::serve(admin_port, parts, closing.clone().cancelled_owned()));
    if token.is_none() {
        tracing::info!("actions are off: set --admin-token-file to a file with a token to log in with");
    }
    let desk = Arc::new(routes::Desk::new(scope, metrics, token));
    let page =
        tokio::spawn(admin::serve_router(listener, routes::router(desk), closing.clone().cancelled_owned()));
    tracing::info!(address = %format_args!("http://{address}"), "dashboard is open");
    tokio::select! {
        _ = interrupts.recv() => {}
        () = told.notified() => {}
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
            ErrorKind::AddrNotAvailable => "the address is none of this machine's".to_owned(),
            _ => error.to_string(),
        },
    })
}

/// The dashboard as its admin port sees it.
struct State {
    scope: Arc<Scope>,
    told: Arc<Notify>,
}

impl Readiness for State {
    fn ready(&self) -> Result<(), Vec<String>> {
        self.scope.fresh().map(drop).map_err(|problem| vec![problem])
    }
}

impl Control for State {
    fn command(&self, command: Command) {
        if matches!(command, Command::Shutdown(_) | Command::Escalate) {
            self.told.notify_one();
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
