//! The runtimes: one for the connections of senders, one for everything else.

use std::{io, ops::Deref};

use scopeguard::guard;
use tokio::runtime::{Builder, Runtime};

/// Starts a tokio runtime for the connections of senders only.
///
/// Publisher confirms, heartbeats and the admin port run on another runtime, so that they do not wait behind the
/// connections. On one runtime, a busy gateway would see late confirms, take the broker for slow, and refuse readings.
///
/// The runtime is shut down in the background: the drop of a `Runtime` blocks, which panics on a thread of another
/// runtime.
pub(super) fn connection_runtime() -> io::Result<impl Deref<Target = Runtime>> {
    let runtime = Builder::new_multi_thread().thread_name("connections").enable_all().build()?;
    Ok(guard(runtime, Runtime::shutdown_background))
}
