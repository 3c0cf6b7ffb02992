//! Rollups: the hours and days of readings, and the hours that are to be computed again.
//!
//! A change of readings marks their hours ([`StaleHours`]) in the same transaction, in the row of their series. Steps
//! ([`RollUp`]) compute the marked hours later.

use std::{collections::BTreeSet, error::Error};

use bytes::{BufMut, BytesMut};
use time::{OffsetDateTime, macros::datetime};
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use crate::{error::QueryResult, pool::Connection, tables::Tables};

const HOUR: i64 = 3_600_000_000;

/// Readings of a step, at most, unless one hour has more.
const READINGS: i32 = 20_000;

/// The hours, in UTC, of changed readings of a series. A parameter of the type `tstzmultirange`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StaleHours(BTreeSet<i64>);

impl Extend<OffsetDateTime> for StaleHours {
    fn extend<T: IntoIterator<Item = OffsetDateTime>>(&mut self, times: T) {
        self.0.extend(times.into_iter().map(|time| {
            let micros = (time - datetime!(2000-01-01 0:00 UTC)).whole_microseconds();
            i64::try_from(micros.div_euclid(i128::from(HOUR))).expect("years have at most six digits")
        }));
    }
}

impl FromIterator<OffsetDateTime> for StaleHours {
    fn from_iter<T: IntoIterator<Item = OffsetDateTime>>(times: T) -> Self {
        let mut hours = Self::default();
        hours.extend(times);
        hours
    }
}

impl StaleHours {
    /// Begin and end of each run of hours, in microseconds since 2000.
    fn ranges(&self) -> Vec<(i64, i64)> {
        let mut ranges: Vec<(i64, i64)> = Vec::new();
        for hour in &self.0 {
            let (low, high) = (hour * HOUR, (hour + 1) * HOUR);
            match ranges.last_mut() {
                Some((_, end)) if *end == low => *end = high,
                _ => ranges.push((low, high)),
            }
        }
        ranges
    }
}

impl ToSql for StaleHours {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        /// The lower bound is part of the range, the upper one is not.
        const LOWER_INCLUSIVE: u8 = 2;
        let ranges = self.ranges();
        out.put_i32(i32::try_from(ranges.len())?);
        for (low, high) in ranges {
            // The length of what follows, the flags, and each bound with its length.
            out.put_i32(1 + 4 + 8 + 4 + 8);
            out.put_u8(LOWER_INCLUSIVE);
            for bound in [low, high] {
                out.put_i32(8);
                out.put_i64(bound);
            }
        }
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TSTZMULTI_RANGE
    }

    to_sql_checked!();
}

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It computed rollups of a series.
    Computed,
    /// Nothing: no further series has any to compute.
    End,
    /// Nothing: another program is computing.
    Busy,
}

/// Computes stale rollups, one step at a time.
pub struct RollUp {
    statement: String,
}

/// Where a pass over the series is.
#[derive(Clone, Debug, Default)]
pub struct Place {
    device: String,
    metric: String,
}

impl RollUp {
    /// The rollups of a fleet.
    pub fn new(tables: &Tables) -> Self {
        Self { statement: format!("SELECT step, next_device, next_metric FROM {tables}_roll_up($1, $2, $3)") }
    }

    /// Computes rollups of the next series that has stale ones of hours that ended five minutes ago. A step is one
    /// transaction: interrupted, it did nothing.
    ///
    /// # Errors
    /// The database refused it.
    pub async fn step(&self, client: &Connection, place: &mut Place) -> QueryResult<Step> {
        let statement = client.prepare_cached(&self.statement).await?;
        let row = client.query_one(&statement, &[&place.device, &place.metric, &READINGS]).await?;
        match row.get(0) {
            "busy" => return Ok(Step::Busy),
            "end" => return Ok(Step::End),
            // The series has no more.
            "done" => *place = Place { device: row.get(1), metric: row.get(2) },
            _ => {}
        }
        Ok(Step::Computed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighboring_hours_are_one_range() {
        let hours: StaleHours = [
            datetime!(1999-12-31 23:59:59.999_999 UTC),
            datetime!(2000-01-01 1:30 +1),
            datetime!(2000-01-01 5:00 UTC),
            datetime!(2000-01-01 5:59 UTC),
        ]
        .into_iter()
        .collect();
        assert_eq!(hours.ranges(), [(-HOUR, HOUR), (5 * HOUR, 6 * HOUR)]);
    }
}
