//! The admin port of a process, open from before it is connected until everything else is closed.

use std::{sync::Arc, time::Duration};

use tokio::{sync::mpsc, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{AdminConfig, AdminParts, Control, PendingProcess, Readiness, serve};
use crate::{
    shutdown::{Command, Mode},
    supervise::{self, TaskHandle},
    telemetry::Metrics,
};

/// Time limit of closing; longer than the grace for running requests.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// An open admin port. Dropping it closes it at once, as when the process fails to start.
pub struct AdminPort<T> {
    process: Arc<PendingProcess<T>>,
    closing: CancellationToken,
    serving: TaskHandle<()>,
}

impl<T: Readiness + Control + 'static> AdminPort<T> {
    /// Starts to serve. Until [`AdminPort::begin`], the process is not ready for the reason `awaited`, and commands
    /// go to `commands`. `mode` is the mode of a `POST /shutdown` that names none.
    pub fn open(
        config: AdminConfig,
        metrics: Metrics,
        mode: Mode,
        commands: mpsc::Sender<Command>,
        awaited: &'static str,
    ) -> Self {
        let process = PendingProcess::new(commands, awaited);
        let parts = AdminParts {
            metrics,
            readiness: Arc::clone(&process) as _,
            control: Arc::clone(&process) as _,
            mode,
        };
        let closing = CancellationToken::new();
        let serving = serve(config, parts, closing.clone().cancelled_owned());
        let serving = supervise::isolated("admin port", serving).spawn();
        Self { process, closing, serving }
    }

    /// From now on `process` answers queries and takes commands. A second call changes nothing.
    pub fn begin(&self, process: Arc<T>) {
        self.process.begin(process);
    }

    /// Closes the port; running requests get 1 s to finish.
    pub async fn close(self) {
        self.closing.cancel();
        let _ = timeout(CLOSE_TIMEOUT, self.serving).await;
    }
}
