//! Alarms: rules for stored readings, what they judge, and the notices of it.
//!
//! [`alarm`] has the rules and judges readings; it knows no database. [`Alarms`] does so in the transaction of a sink that
//! stores readings, and keeps the alarms and their notices in Postgres. Beside the writes, a relay publishes the notices, one
//! monitor looks for silent devices, and another one for reminders, alarms that are muted no more, and removed rules.

pub mod alarm;
mod alarm_evaluator;
mod alarm_monitor;
mod alarm_rows;
mod alarms;
mod changed_reading;
mod due_notices;
mod fleet_check;
mod micros;
mod notice;
mod outbox;
mod part_report;
mod pending_rules;
mod rejudge;
mod relay;
mod rule_registry;
mod series_counter;
mod series_locks;
mod silence;
mod silence_monitor;
mod usable_readings;

pub use alarm_evaluator::Judged;
pub use alarms::Alarms;
pub use changed_reading::{ChangedReading, NewReading};
pub use part_report::PartReport;
pub use pending_rules::SeriesPending;
