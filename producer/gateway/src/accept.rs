//! The listening socket: accepts connections and hands them to the server.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use garenne_common::{
    config::{ConfigError, Invalid},
    supervise,
};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::Semaphore,
};
use tokio_util::sync::CancellationToken;

use crate::{
    auth::Peer,
    connection::{Connection, Port},
    context::GatewayContext,
    http,
    server::Server,
    source_limit::SourcePermit,
};

/// Most connections that are answered `busy` at once. Above it, refused connections are closed without an answer.
const MAX_REJECTIONS: usize = 64;

/// Pause after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Length of the queue of connections that the kernel has completed and the gateway has not accepted. A client whose
/// connection does not fit retries after one second. The usual 128 are too few for a fleet that reconnects at once. The
/// kernel may enforce a lower limit (`net.core.somaxconn`).
const BACKLOG: u32 = 4096;

/// Kernel send buffer of one connection, in bytes. The kernel's default grows to megabytes, which a client that reads
/// no responses could fill.
const SEND_BUFFER: u32 = 64 * 1024;

/// Raises the soft limit on open files to the hard limit: every connection is one.
pub fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "failed to raise the limit on open files");
    }
}

/// Listens on the address of the setting `listen`.
pub(crate) fn listen(address: SocketAddr) -> Result<TcpListener, ConfigError> {
    bind(address).map_err(|error| {
        let problem = match error.kind() {
            ErrorKind::AddrInUse => {
                "the address is already in use: stop the program that uses it, or choose another port, such as --listen 127.0.0.1:8081"
            }
            ErrorKind::PermissionDenied => {
                "this user may not listen on the port: choose a port from 1024"
            }
            ErrorKind::AddrNotAvailable => "the address is not assigned to this host",
            _ => &error.to_string(),
        };
        Invalid::new("listen", address, problem).given_by("--listen or GARENNE_LISTEN")
    })
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restarted gateway can bind its port while old connections are in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    // Accepted sockets inherit the size.
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves the connections of `listener` with `server` until `stop` is cancelled, then waits for open requests, at most
/// for `drain_timeout`. Returns whether all of them ended.
pub async fn serve(
    listener: TcpListener,
    context: Arc<GatewayContext>,
    server: Arc<dyn Server>,
    stop: CancellationToken,
) -> bool {
    let router = http::router(Arc::clone(&context));
    let port = Port { gateway: Arc::clone(&context), router, stop: stop.clone(), server: server.name() };
    let port = Arc::new(port);
    let rejections = Arc::new(Semaphore::new(MAX_REJECTIONS));
    let network = &context.network;
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
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
        // A proxy has the connections of many senders, which are counted when their addresses are known.
        let source = if network.is_proxy(peer.ip()) {
            Some(SourcePermit::uncounted())
        } else {
            network.sources.admit(peer.ip())
        };
        let connection = Connection { stream, peer, port: Arc::clone(&port), source };
        let offered = match &connection.source {
            Some(_) => server.offer(connection).map_err(|connection| (connection, "full")),
            None => Err((connection, "source")),
        };
        if let Err((connection, reason)) = offered {
            context.instruments.refused(server.name(), reason);
            context.instruments.audit.refused(&Peer::new(peer), server.name(), "too-many-connections", None);
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
