//! Maps foreign payloads to readings, by rules from TOML.
//!
//! A [`Map`] is compiled once from a rule file or a shipped map. [`Map::apply`] takes a payload (JSON, a bare number or
//! text, or Sparkplug B) and its [`Source`], and returns the readings, or the reason why there are none. The first rule
//! whose pattern and conditions match counts. A payload is mapped as a whole or not at all.
//!
//! ```
//! use garenne_map::{Map, Source};
//! use garenne_protocol::sensor::{Limits, Timestamp};
//!
//! let map = Map::parse(
//!     "rules.toml",
//!     r#"
//!         [[map]]
//!         topic  = "plant/+/+"
//!         device = "{1}"
//!         metric = "{2}"
//!         unit   = "Cel"
//!     "#,
//! )?;
//! let now = Timestamp::UNIX_EPOCH;
//! let mapped = map.apply(Source::Topic("plant/boiler/inlet"), b"71.5", now, &Limits::default())?;
//! assert_eq!(mapped.records[0].reading.value, 71.5);
//! assert!(mapped.records[0].time_assumed);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! There is no I/O here but reading rule files, and no AMQP or MQTT client.

pub mod builtin;
mod chain;
mod compile;
mod document;
mod entry;
pub mod limits;
mod map;
mod pattern;
mod plan;
mod pointer;
mod readings;
mod remainder;
mod rule;
mod sparkplug;
mod template;
mod time;
mod unmapped;

pub use chain::MapChain;
pub use garenne_protocol::task::Source;
pub use map::{InvalidMap, Map, Mapped};
pub use unmapped::{Reason, Unmapped};
