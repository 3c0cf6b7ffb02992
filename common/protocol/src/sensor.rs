//! Sensor data as it arrives: SenML (RFC 8428), plain readings, units, instants.
//!
//! Everything here is pure: no clock, no input or output, no AMQP. What "now" is, and how much is
//! too much, are parameters; so the gateway and the worker give the same answer to the same bytes.

pub mod parse;
pub mod reading;
pub mod schema;
pub mod senml;
pub mod timestamp;
pub mod units;

pub use parse::{BadRecord, Fault, Limits, Record, readings_from};
pub use reading::{Reading, ReadingKey};
pub use timestamp::Timestamp;
pub use units::Unit;
