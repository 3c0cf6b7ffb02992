//! The fields that the heartbeats of every program share.

use std::time::{Duration, SystemTime};

use garenne_protocol::{
    heartbeat::{Heartbeat, Program, Stance},
    task::epoch_ms,
};

use super::Metrics;
use crate::{clock, config::host_name};

/// Makes the heartbeats of a process. The program adds what only it has.
#[derive(Debug, Clone)]
pub struct HeartbeatSource {
    program: Program,
    id: String,
    incarnation: String,
    started: SystemTime,
    interval: Duration,
    metrics: Metrics,
}

impl HeartbeatSource {
    /// A process that starts now. `incarnation` identifies this run of it, and `interval` is that of its heartbeats.
    pub fn new(
        program: Program,
        id: String,
        incarnation: String,
        interval: Duration,
        metrics: Metrics,
    ) -> Self {
        Self { program, id: Heartbeat::fitting_id(id), incarnation, started: clock::now(), interval, metrics }
    }

    /// The interval of the heartbeats.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// The current heartbeat.
    pub fn heartbeat(&self, stance: Stance) -> Heartbeat {
        Heartbeat {
            program: self.program,
            id: self.id.clone(),
            incarnation: self.incarnation.clone(),
            host: host_name(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: epoch_ms(self.started),
            at: epoch_ms(clock::now()),
            every_ms: self.interval.as_millis().try_into().unwrap_or(u64::MAX),
            stance,
            lanes: Default::default(),
            paused: Vec::new(),
            paused_kinds: Vec::new(),
            unhandled: Vec::new(),
            groups: Default::default(),
            running: 0,
            tasks: Vec::new(),
            kinds: self.metrics.kind_counts(),
            connections: self.metrics.connection_counts(),
            blocked: self.metrics.connection().blocked.get() != 0,
            denied: None,
            sinks: Default::default(),
            gateway: None,
            bridge: None,
            spool: None,
        }
    }
}
