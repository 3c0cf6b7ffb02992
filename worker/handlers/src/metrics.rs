//! The metrics of handlers in other languages.

use garenne_common::telemetry::metrics::NewMetrics;
use prometheus::{IntCounter, IntCounterVec, IntGauge, Registry};

/// The metrics of one handler.
#[derive(Clone)]
pub(crate) struct Counters {
    /// Processes that ended by themselves.
    pub(crate) restarts: IntCounter,
    /// Processes that were ended because of their memory.
    pub(crate) out_of_memory: IntCounter,
    /// Processes that were ended because of a frame that the protocol does not allow.
    pub(crate) violations: IntCounter,
    /// Lines of logs that were too long.
    pub(crate) cut_lines: IntCounter,
    /// Answers for a run that had ended.
    pub(crate) ignored: IntCounter,
    /// Processes that can run tasks.
    pub(crate) processes: IntGauge,
}

/// Registers the metrics of handlers. Returns those of each name.
pub(crate) fn register<'a>(registry: &Registry, handlers: impl Iterator<Item = &'a str>) -> Vec<Counters> {
    let new = NewMetrics(registry);
    let counters = |name: &str, help: &str| new.counters(name, help, &["handler"]);
    let restarts =
        counters("garenne_handler_restarts_total", "Processes of a handler that ended by themselves.");
    let out_of_memory = counters(
        "garenne_handler_out_of_memory_total",
        "Processes of a handler that were ended because of their memory limit.",
    );
    let violations = counters(
        "garenne_handler_violations_total",
        "Processes of a handler that were ended because of a frame that the protocol does not allow.",
    );
    let cut_lines = counters(
        "garenne_handler_cut_lines_total",
        "Lines that a handler printed and that were too long to be logged whole.",
    );
    let ignored =
        counters("garenne_handler_ignored_answers_total", "Answers of a handler for a run that had ended.");
    let help = "Processes of a handler that can run tasks.";
    let processes = new.gauges("garenne_handler_processes", help, &["handler"]);
    let of_handler = |name: &str| {
        let counter = |all: &IntCounterVec| all.with_label_values(&[name]);
        Counters {
            restarts: counter(&restarts),
            out_of_memory: counter(&out_of_memory),
            violations: counter(&violations),
            cut_lines: counter(&cut_lines),
            ignored: counter(&ignored),
            processes: processes.with_label_values(&[name]),
        }
    };
    handlers.map(of_handler).collect()
}
