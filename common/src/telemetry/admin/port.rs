//! The admin port of a process, open from before it is connected until everything else is closed.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::{sync::mpsc, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{
    AdminConfig, Process,
    host::own_hosts_only,
    routes::{Served, router},
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
        let router = own_hosts_only(router(Arc::clone(&served), token), allowed_hosts);
        let serving =
            serve_connections(listener, router, tls, header_timeout, closing.clone().cancelled_owned());
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
