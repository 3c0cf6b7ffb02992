//! A handler's panic in the log: one line, which says whose task it was.
//!
//! The hook runs where the panic is, before anything has caught it: what ran there is known by then only if it
//! was noted before.

use std::{env, panic, sync::Arc};

use garenne_protocol::task::Envelope;

tokio::task_local! {
    /// The task whose handler is being polled.
    static RUNNING: Arc<Envelope>;
}

/// Runs a handler so that a panic in it is told as this task's. What it spawns is on its own.
pub(crate) fn with_task<F: Future>(
    envelope: Arc<Envelope>,
    handler: F,
) -> impl Future<Output = F::Output> + use<F> {
    RUNNING.scope(envelope, handler)
}

/// A handler's panic is caught and counted, and its task tried again: one log line tells of it, and
/// a backtrace follows only where somebody asked for one.
pub(crate) fn install_hook() {
    let backtrace = env::var_os("RUST_BACKTRACE").map(|_| panic::take_hook());
    panic::set_hook(Box::new(move |panic| {
        let error = panic.payload_as_str().unwrap_or("no message");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let told = RUNNING.try_with(|envelope| {
            let trace_id = envelope.trace_id();
            tracing::error!(task = %envelope.id, kind = %envelope.kind, trace_id, error, place, "panic");
        });
        if told.is_err() {
            tracing::error!(error, place, "panic");
        }
        if let Some(print) = &backtrace {
            print(panic);
        }
    }));
}
