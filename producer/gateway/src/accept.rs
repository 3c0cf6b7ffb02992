//! Accepts connections and hands them to the server.

use std::{sync::Arc, time::Duration};

use garenne_common::supervise;
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::sync::CancellationToken;

use crate::{
    auth::Peer,
    connection::{Connection, Port},
    context::GatewayContext,
    http,
    server::Server,
    source_limit::SourceLimit,
};

/// Most connections that are answered `busy` at once. Above it, refused connections are closed without an answer.
const MAX_REJECTIONS: usize = 64;

/// Pause after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Serves the connections of `listener` with `server` until `stop` is cancelled, then waits for open requests, at most
/// for `drain_timeout`. Returns whether all of them ended.
pub async fn serve(
    listener: TcpListener,
    context: Arc<GatewayContext>,
    server: Arc<dyn Server>,
    stop: CancellationToken,
) -> bool {
    let router = http::router(Arc::clone(&context));
    let port = Arc::new(Port { gateway: Arc::clone(&context), router, stop: stop.clone() });
    let rejections = Arc::new(Semaphore::new(MAX_REJECTIONS));
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
        let source = source_limit.admit(peer.ip());
        let connection = Connection { stream, peer, port: Arc::clone(&port), source };
        let offered = match &connection.source {
            Some(_) => server.offer(connection).map_err(|connection| (connection, "full")),
            None => Err((connection, "source")),
        };
        if let Err((connection, reason)) = offered {
            context.instruments.refused(server.name(), reason);
            Peer::new(peer).audit(server.name(), "too-many-connections", None);
            if let Ok(permit) = Arc::clone(&rejections).try_acquire_owned() {
                let reject = async move {
                    let _ = connection.reject().await;
                    drop(permit);
                };
                supervise::isolated("reject", reject).spawn().detach();
            }
        }
    }
    // From here on the kernel refuses connections, so that senders use another gateway.
    drop(listener);
    tokio::time::timeout(context.limits.drain_timeout, server.drain()).await.is_ok()
}
