//! Sensor data as it arrives: SenML (RFC 8428), plain readings, units, instants.
//!
//! Everything here is pure: no clock, no input or output, no AMQP. What "now" is, and how much is
//! too much, are parameters; so the gateway and the worker give the same answer to the same bytes.

mod fault;
pub mod parse;
pub mod reading;
pub mod schema;
pub mod senml;
pub mod timestamp;
pub mod units;

pub use fault::{BadRecord, Fault};
pub use parse::{Limits, Record, readings_from, resolve_pack};
pub use reading::{Reading, ReadingKey};
pub use timestamp::Timestamp;
pub use units::Unit;
