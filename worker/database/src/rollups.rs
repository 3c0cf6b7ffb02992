//! Rollups: the hours and days of readings, and the hours that are to be computed again.
//!
//! A change of readings marks their hours ([`StaleHours`]) in the same transaction, in the row of their series. Steps
//! ([`RollUp`]) compute the marked hours later. A step that fails is recorded in the row of its series ([`failing`]), and
//! the other series go on.

use std::{
    collections::BTreeSet,
    error::Error,
    fmt::{self, Display, Formatter},
};

use bytes::{BufMut, BytesMut};
use time::{OffsetDateTime, macros::datetime};
use tokio_postgres::{
    Client, Row,
    types::{IsNull, ToSql, Type, to_sql_checked},
};

use crate::{error::QueryResult, pool::Connection, tables::Tables};

const HOUR: i64 = 3_600_000_000;

/// Readings of a step, at most, unless one hour has more.
const READINGS: i32 = 20_000;
/// The server's time limit for a step, which usually takes some ten milliseconds. Meanwhile the readings of its series
/// cannot be stored.
const STEP_TIMEOUT: &str = "10s";

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It computed rollups of a series.
    Computed,
    /// The rollups of a series cannot be computed. Nothing is changed; after a pause a step tries again.
    Failed(FailingSeries),
    /// Nothing: no further series has any to compute.
    End,
    /// Nothing: another program is computing.
    Busy,
}

/// A series whose rollups cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingSeries {
    /// The device.
    pub device: String,
    /// The metric.
    pub metric: String,
    /// The error of the last attempt.
    pub error: String,
}

impl FailingSeries {
    /// Of a row with device, metric and error, from `first` on.
    fn new(row: &Row, first: usize) -> Self {
        Self { device: row.get(first), metric: row.get(first + 1), error: row.get(first + 2) }
    }
}

impl Display for FailingSeries {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "rollups of {} {} are not computed: {}", self.device, self.metric, self.error)
    }
}

/// The series whose rollups cannot be computed.
pub async fn failing(client: &Client, tables: &Tables) -> QueryResult<Vec<FailingSeries>> {
    let select = format!(
        "SELECT device, metric, rollup_error FROM {tables}_series WHERE rollup_error IS NOT NULL ORDER BY 1, 2"
    );
    Ok(client.query(&select, &[]).await?.iter().map(|row| FailingSeries::new(row, 0)).collect())
}

/// SQL: the mean of a column of readings that fulfill `condition`, whatever their size. `avg()` fails where a sum or a sum
/// of squares is too large.
pub fn mean_of_values(tables: &Tables, value: &str, condition: &str) -> String {
    mean(tables, value, "1", condition, &format!("count(*) FILTER (WHERE {condition})"))
}

/// SQL: the mean of the columns `mean` of rollups, weighted by their `count`.
pub fn mean_of_means(tables: &Tables) -> String {
    mean(tables, "mean", "count", "count > 0", "sum(count)::float8")
}

/// The arguments of the function: sums of values up to 1e290, and of others times 2^-600.
fn mean(tables: &Tables, value: &str, weight: &str, condition: &str, number: &str) -> String {
    format!(
        "{tables}_mean(sum({value} * {weight}) FILTER (WHERE {condition} AND abs({value}) <= 1e290),
                       sum({value} * 2.409919865102884e-181::float8 * {weight})
                           FILTER (WHERE {condition} AND abs({value}) > 1e290), {number})"
    )
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
        Self {
            statement: format!(
                "SELECT step, next_device, next_metric, error FROM {tables}_roll_up($1, $2, $3)"
            ),
        }
    }

    /// Computes rollups of the next series that has stale ones of hours that ended five minutes ago. A step is one
    /// transaction: interrupted, it did nothing.
    pub async fn step(&self, client: &mut Connection, place: &mut Place) -> QueryResult<Step> {
        let transaction = client.transaction().await?;
        transaction.batch_execute(&format!("SET LOCAL statement_timeout = '{STEP_TIMEOUT}'")).await?;
        let statement = transaction.prepare_cached(&self.statement).await?;
        let row = transaction.query_one(&statement, &[&place.device, &place.metric, &READINGS]).await?;
        transaction.commit().await?;
        let of_series = || Place { device: row.get(1), metric: row.get(2) };
        Ok(match row.get(0) {
            "busy" => Step::Busy,
            "end" => Step::End,
            "failed" => {
                *place = of_series();
                Step::Failed(FailingSeries::new(&row, 1))
            }
            // The series has no more.
            "done" => {
                *place = of_series();
                Step::Computed
            }
            _ => Step::Computed,
        })
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
