//! The admin port of a process, open from before it is connected until everything else is closed.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{
    extract::ConnectInfo,
    http::{Extensions, HeaderMap},
};
use tokio::{sync::mpsc, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{
    AdminConfig, Process,
    host::own_hosts_only,
    places::Visitor,
    routes::{Served, is_authorized, router},
    serve::serve_connections,
};
use crate::{
    shutdown::{Command, Mode},
    supervise::{self, TaskHandle},
    telemetry::Metrics,
};

/// Time limit of closing; longer than the grace for running requests.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// An open admin port. Dropping it closes it at once, as when the process fails to start.
pub struct AdminPort {
    served: Arc<Served>,
    closing: CancellationToken,
    serving: TaskHandle<()>,
}

impl AdminPort {
    /// Starts to serve. Until [`AdminPort::begin`], the process is not ready for the reason `awaited`. Commands to
    /// stop, pause and resume the process go to `commands`. `mode` is the mode of a `POST /shutdown` that names none.
    pub fn open(
        config: AdminConfig,
        metrics: Metrics,
        mode: Mode,
        commands: mpsc::Sender<Command>,
        awaited: &'static str,
    ) -> Self {
        let served = Arc::new(Served { metrics, commands, mode, awaited, process: OnceLock::new() });
        let closing = CancellationToken::new();
        let AdminConfig { listener, token, tls, allowed_hosts, header_timeout } = config;
        let known = token.clone();
        let visitors = move |extensions: &Extensions, headers: &HeaderMap| {
            let peer = extensions.get::<ConnectInfo<SocketAddr>>();
            let address = peer.map_or(Ipv4Addr::UNSPECIFIED.into(), |ConnectInfo(peer)| peer.ip());
            Visitor { address, known: known.as_ref().is_some_and(|token| is_authorized(token, headers)) }
        };
        let router = own_hosts_only(router(Arc::clone(&served), token), allowed_hosts);
        let closed = closing.clone().cancelled_owned();
        let serving = serve_connections(listener, router, tls, Arc::new(visitors), header_timeout, closed);
        let serving = supervise::isolated("admin port", serving).spawn();
        Self { served, closing, serving }
    }

    /// From now on `process` answers queries. A second call changes nothing.
    pub fn begin(&self, process: Arc<dyn Process>) {
        let _ = self.served.process.set(process);
    }

    /// Closes the port; running requests get 1 s to finish.
    pub async fn close(self) {
        self.closing.cancel();
        let _ = timeout(CLOSE_TIMEOUT, self.serving).await;
    }
}
