//! Accepting connections and handing them to the server.

use std::{sync::Arc, time::Duration};

use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    audit::audit, auth::Peer, connection::Connection, http, parts::Parts, server::Server, sources::Sources,
};

/// How many senders that found no place are told so at once; beyond that they are only closed.
const TURNED_AWAY_AT_ONCE: usize = 64;

/// A bound port with a server behind it.
pub struct Gateway {
    listener: TcpListener,
    parts: Arc<Parts>,
    server: Arc<dyn Server>,
}

impl Gateway {
    /// Serves what `listener` accepts with `server`.
    pub fn new(listener: TcpListener, parts: Arc<Parts>, server: Arc<dyn Server>) -> Self {
        Self { listener, parts, server }
    }

    /// Accepts until `stop` is cancelled, then lets requests under way end, at most for the drain
    /// timeout. Returns whether all of them ended.
    pub async fn run(self, stop: CancellationToken) -> bool {
        let Self { listener, parts, server } = self;
        let router = http::router(Arc::clone(&parts));
        let turned_away = Arc::new(Semaphore::new(TURNED_AWAY_AT_ONCE));
        let tellers = TaskTracker::new();
        let sources = Sources::new(parts.limits.max_connections_per_source);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = stop.cancelled() => break,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of file descriptors, or the peer is gone already: the port stays, and a
                    // pause keeps the first from spinning.
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let connection = Connection {
                stream,
                peer,
                parts: Arc::clone(&parts),
                router: router.clone(),
                stop: stop.clone(),
                source: sources.admit(peer.ip()),
            };
            let offered = match &connection.source {
                Some(_) => server.offer(connection).map_err(|connection| (connection, "full")),
                None => Err((connection, "source")),
            };
            if let Err((connection, reason)) = offered {
                parts.instruments.refused(server.name(), reason);
                audit(&Peer::new(peer), server.name(), "too-many-connections", None);
                if let Ok(place) = Arc::clone(&turned_away).try_acquire_owned() {
                    tellers.spawn(async move {
                        let _ = connection.turn_away().await;
                        drop(place);
                    });
                }
            }
        }
        // New senders are refused by the system from here on and find another gateway.
        drop(listener);
        tokio::time::timeout(parts.limits.drain_timeout, server.drain()).await.is_ok()
    }
}
