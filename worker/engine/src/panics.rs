//! Panics: each is logged as one line that names the task, and locks stay usable.
//!
//! The panic hook runs on the panicking thread before the panic is caught, so the task must be known there. A
//! task-local variable names it.

use std::{env, panic, sync::Arc};

pub(crate) use garenne_common::lock::lock;
use garenne_protocol::task::Envelope;

tokio::task_local! {
    /// The task whose handler is being polled. Not set for tasks that the handler spawns.
    pub(crate) static RUNNING: Arc<Envelope>;
}

/// Installs a panic hook that logs one line per panic, and a backtrace only if `RUST_BACKTRACE` is set.
///
/// The worker catches the panic of a handler, counts it, and retries the task.
#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "a program without `cli` has a hook of its own"))]
pub(crate) fn install_hook() {
    let default_hook = env::var_os("RUST_BACKTRACE").map(|_| panic::take_hook());
    panic::set_hook(Box::new(move |panic| {
        let error = panic.payload_as_str().unwrap_or("no message");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let logged = RUNNING.try_with(|envelope| {
            let trace_id = envelope.trace_id();
            tracing::error!(task = %envelope.id, kind = %envelope.kind, trace_id, error, place, "panic");
        });
        if logged.is_err() {
            tracing::error!(error, place, "panic");
        }
        if let Some(print_backtrace) = &default_hook {
            print_backtrace(panic);
        }
    }));
}
