//! Results and readings in Postgres.
//!
//! A batch is stored in one transaction. A result is unique by task id, a reading by device, metric and time,
//! so that storing either again changes nothing. A reading with another value than the stored one is a
//! conflict ([`OnConflict`]). Alarm rules are judged in the same transaction ([`Alarms`](garenne_alarms::Alarms)). Beside the
//! writes, rollups of the readings are computed, and the figures of the worker's lanes are recorded.

mod lane_recorder;
mod reading_store;
mod readings;
mod results;
mod rollup_worker;
mod series;
mod sink;
mod versions;

pub use reading_store::PostgresReadingStore;
pub use readings::OnConflict;
pub use results::StoredResults;
pub use sink::{PostgresSink, SinkOptions};
