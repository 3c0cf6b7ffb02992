//! Results and readings in Postgres.
//!
//! A batch is stored in one transaction. A result is unique by task id, a reading by device, metric and time,
//! so that storing either again changes nothing. A reading with another value than the stored one is a
//! conflict ([`OnConflict`]). Alarm rules are evaluated in the same transaction, which stores the notices of the
//! alarms that it changes. Beside the writes, a relay publishes the notices, one monitor looks for silent devices, another
//! one for reminders, alarms that are muted no more, and removed rules, rollups of the readings are computed, and the figures of
//! the worker's lanes are recorded.

mod alarm_evaluator;
mod alarm_monitor;
mod alarm_rows;
mod changed_reading;
mod due_notices;
mod fleet_check;
mod lane_recorder;
mod micros;
mod notice;
mod outbox;
mod part_report;
mod pending_rules;
mod reading_store;
mod readings;
mod rejudge;
mod relay;
mod results;
mod rollup_worker;
mod rule_registry;
mod series;
mod series_locks;
mod silence;
mod silence_monitor;
mod sink;
mod usable_readings;
mod versions;

pub use reading_store::PostgresReadingStore;
pub use readings::OnConflict;
pub use results::StoredResults;
pub use sink::{PostgresSink, SinkOptions};
