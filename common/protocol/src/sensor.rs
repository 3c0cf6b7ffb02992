//! Sensor data formats: SenML (RFC 8428), plain readings, units and timestamps.
//!
//! All code here is pure: no clock, no I/O, no AMQP. The current time and the limits are parameters, so the
//! gateway and the worker get the same result for the same bytes.

mod code;
mod counter;
mod fault;
mod keyed_values;
pub mod lenient;
pub mod parse;
pub mod quantity;
pub mod reading;
#[cfg(feature = "schemas")]
pub mod schema;
pub mod senml;
mod time_unit;
pub mod timestamp;
pub mod units;

pub use code::is_code;
pub use counter::{Count, Counter, SentCounter};
pub use fault::{BadField, BadRecord, Fault};
pub use keyed_values::KeyedValues;
pub use parse::{Limits, Record, Sifted, readings_from};
pub use quantity::without_labels;
pub use reading::Reading;
pub use time_unit::TimeUnit;
pub use timestamp::Timestamp;
pub use units::Unit;
