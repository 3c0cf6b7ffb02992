//! Accepts connections and hands them to the server.

use std::{sync::Arc, time::Duration};

use garenne_common::supervise;
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    audit::audit, auth::Peer, connection::Connection, context::GatewayContext, http, server::Server,
    source_limit::SourceLimit,
};

/// Most connections that are answered `busy` at once. Above it, refused connections are closed without an answer.
const MAX_REJECTIONS: usize = 64;

/// Pause after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// A listening port and its server.
pub struct Gateway {
    listener: TcpListener,
    context: Arc<GatewayContext>,
    server: Arc<dyn Server>,
}

impl Gateway {
    /// Serves connections of `listener` with `server`.
    pub fn new(listener: TcpListener, context: Arc<GatewayContext>, server: Arc<dyn Server>) -> Self {
        Self { listener, context, server }
    }

    /// Accepts connections until `stop` is cancelled, then waits for open requests, at most for `drain_timeout`.
    /// Returns whether all of them ended.
    pub async fn run(self, stop: CancellationToken) -> bool {
        let Self { listener, context, server } = self;
        let router = http::router(Arc::clone(&context));
        let rejections = Arc::new(Semaphore::new(MAX_REJECTIONS));
        let rejecting = TaskTracker::new();
        let source_limit = SourceLimit::new(context.limits.max_connections_per_source);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = stop.cancelled() => break,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // The process has no file descriptor left, or the peer has closed the connection already. The
                    // pause prevents a busy loop in the first case.
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            let connection = Connection {
                stream,
                peer,
                gateway: Arc::clone(&context),
                router: router.clone(),
                stop: stop.clone(),
                source: source_limit.admit(peer.ip()),
            };
            let offered = match &connection.source {
                Some(_) => server.offer(connection).map_err(|connection| (connection, "full")),
                None => Err((connection, "source")),
            };
            if let Err((connection, reason)) = offered {
                context.instruments.refused(server.name(), reason);
                audit(&Peer::new(peer), server.name(), "too-many-connections", None);
                if let Ok(permit) = Arc::clone(&rejections).try_acquire_owned() {
                    let reject = async move {
                        let _ = connection.reject().await;
                        drop(permit);
                    };
                    supervise::isolated("reject", reject).spawn_in(&rejecting).detach();
                }
            }
        }
        // From here on the kernel refuses connections, so that senders use another gateway.
        drop(listener);
        tokio::time::timeout(context.limits.drain_timeout, server.drain()).await.is_ok()
    }
}
