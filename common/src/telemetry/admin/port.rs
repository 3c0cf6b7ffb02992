//! The admin port of a process, from before it has begun until everything else is closed.

use std::{sync::Arc, time::Duration};

use tokio::{sync::mpsc, time::timeout};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{AdminConfig, AdminParts, Control, Late, Readiness, serve};
use crate::{
    shutdown::{Command, Mode},
    telemetry::Metrics,
};

/// How long closing may take: more than an answer under way is given.
const CLOSING: Duration = Duration::from_secs(5);

/// An open admin port. Dropped, it is closed at once, as where the process fails to begin.
pub struct AdminPort<T> {
    late: Arc<Late<T>>,
    closing: CancellationToken,
    serving: AbortOnDropHandle<()>,
}

impl<T: Readiness + Control + 'static> AdminPort<T> {
    /// Answers from now on. Until [`AdminPort::begin`], readiness misses what `awaited` says and `orders` takes
    /// the commands; `mode` is what a `POST /shutdown` without one means.
    pub fn open(
        config: AdminConfig,
        metrics: Metrics,
        mode: Mode,
        orders: mpsc::Sender<Command>,
        awaited: &'static str,
    ) -> Self {
        let late = Late::new(orders, awaited);
        let parts =
            AdminParts { metrics, readiness: Arc::clone(&late) as _, control: Arc::clone(&late) as _, mode };
        let closing = CancellationToken::new();
        let serving = tokio::spawn(serve(config, parts, closing.clone().cancelled_owned()));
        Self { late, closing, serving: AbortOnDropHandle::new(serving) }
    }

    /// The process has begun, and answers for itself. Only the first one counts.
    pub fn begin(&self, process: Arc<T>) {
        self.late.begin(process);
    }

    /// Takes no more connections; answers under way get a second to get out.
    pub async fn close(self) {
        self.closing.cancel();
        let _ = timeout(CLOSING, self.serving).await;
    }
}
