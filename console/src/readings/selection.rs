//! Which readings a command works on.

use garenne_common::pattern::NamePattern;
use garenne_database::{Connection, QueryResult, Tables, muting::device_matches};
use garenne_protocol::sensor::Timestamp;
use time::{Duration, OffsetDateTime, macros::datetime};
use tokio_postgres::types::ToSql;

/// Readings by device, metric and time.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    device: Option<NamePattern>,
    metric: Option<String>,
    /// The readings' times are later than this …
    pub(super) after: OffsetDateTime,
    /// … and not later than this.
    pub(super) last: OffsetDateTime,
}

/// The readings of one device's metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Series {
    pub(super) device: String,
    pub(super) metric: String,
}

/// The times that readings can have.
const FIRST: OffsetDateTime = datetime!(0000-01-01 0:00 UTC);
const LAST: OffsetDateTime = datetime!(9999-12-31 23:59:59.999_999 UTC);

/// Times are stored in microseconds.
const TICK: Duration = Duration::MICROSECOND;

impl Selection {
    pub(super) fn new(
        device: Option<&str>,
        metric: Option<String>,
        from: Option<Timestamp>,
        to: Option<Timestamp>,
    ) -> Result<Self, String> {
        let device =
            device.map(NamePattern::parse).transpose().map_err(|error| format!("--device: {error}"))?;
        if let (Some(from), Some(to)) = (from, to)
            && from >= to
        {
            return Err(format!("--to: {to} is not after --from ({from})"));
        }
        let first = from.map_or(FIRST, OffsetDateTime::from);
        let last = to.map_or(LAST, |to| OffsetDateTime::from(to) - TICK);
        Ok(Self { device, metric, after: first - TICK, last })
    }

    /// The device, or the beginning of devices.
    pub(super) fn device(&self) -> Option<&str> {
        self.device.as_ref().map(NamePattern::as_str)
    }

    pub(super) fn metric(&self) -> Option<&str> {
        self.metric.as_deref()
    }

    /// The series with such readings, in the order of device and metric, and an estimate of the number of readings.
    pub(super) async fn series(
        &self,
        client: &Connection,
        tables: &Tables,
    ) -> QueryResult<(Vec<Series>, u64)> {
        let device = self.device.as_ref().map(NamePattern::as_str);
        let matches = device_matches("$1", "device");
        let query = format!(
            "SELECT device, metric FROM {tables}_series
             WHERE ($1::text IS NULL OR {matches}) AND ($2::text IS NULL OR metric = $2) ORDER BY device, metric"
        );
        let parameters: [&(dyn ToSql + Sync); 2] = [&device, &self.metric];
        let rows = client.query(&query, &parameters).await?;
        let series: Vec<_> =
            rows.iter().map(|row| Series { device: row.get(0), metric: row.get(1) }).collect();
        let devices: Vec<_> = series.iter().map(|series| &*series.device).collect();
        let metrics: Vec<_> = series.iter().map(|series| &*series.metric).collect();
        // The planner's estimate: counting would read everything.
        let estimate = format!(
            "EXPLAIN (FORMAT JSON) SELECT FROM {tables}_readings
             WHERE device = ANY($1) AND metric = ANY($2) AND time > $3 AND time <= $4"
        );
        let parameters: [&(dyn ToSql + Sync); 4] = [&devices, &metrics, &self.after, &self.last];
        let plan: serde_json::Value = client.query_one(&estimate, &parameters).await?.get(0);
        Ok((series, plan[0]["Plan"]["Plan Rows"].as_f64().unwrap_or(0.0) as u64))
    }
}
