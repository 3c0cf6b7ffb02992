//! Times of alarm rules as those of Postgres.

use time::OffsetDateTime;
use tokio_postgres::types::Timestamp;

use crate::alarm::Micros;

pub(super) fn micros(time: OffsetDateTime) -> Micros {
    i64::try_from(time.unix_timestamp_nanos() / 1000).unwrap_or(i64::MAX)
}

/// A time that is too far away for a calendar is infinite.
pub(super) fn timestamp(at: Micros) -> Timestamp<OffsetDateTime> {
    match OffsetDateTime::from_unix_timestamp_nanos(i128::from(at) * 1000) {
        Ok(time) => Timestamp::Value(time),
        Err(_) if at < 0 => Timestamp::NegInfinity,
        Err(_) => Timestamp::PosInfinity,
    }
}
