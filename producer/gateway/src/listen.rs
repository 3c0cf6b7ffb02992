//! The listening socket, and the limit on open files: every connection is one.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
};

use garenne_common::config::ConfigError;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpSocket};

/// Length of the queue of connections that the kernel has completed and the gateway has not accepted. A client whose
/// connection does not fit retries after one second. The usual 128 are too few for a fleet that reconnects at once. The
/// kernel may enforce a lower limit (`net.core.somaxconn`).
const BACKLOG: u32 = 4096;

/// Kernel send buffer of one connection, in bytes. The kernel's default grows to megabytes, which a client that reads
/// no responses could fill.
const SEND_BUFFER: u32 = 64 * 1024;

/// Listens on the address of the setting `listen`.
///
/// # Errors
/// The address cannot be bound.
pub(crate) fn listen(address: SocketAddr) -> Result<TcpListener, ConfigError> {
    bind(address).map_err(|error| {
        let problem = match error.kind() {
            ErrorKind::AddrInUse => {
                "the address is already in use: stop the program that uses it, or choose another port, such as --listen 127.0.0.1:8081".to_owned()
            }
            ErrorKind::PermissionDenied => {
                "this user may not listen on the port: choose a port from 1024".to_owned()
            }
            ErrorKind::AddrNotAvailable => "the address is not assigned to this host".to_owned(),
            _ => error.to_string(),
        };
        ConfigError::Invalid {
            setting: "listen".to_owned(),
            value: address.to_string(),
            origin: "--listen or GARENNE_LISTEN".to_owned(),
            problem,
        }
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

/// Raises the soft limit on open files to the hard limit.
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
