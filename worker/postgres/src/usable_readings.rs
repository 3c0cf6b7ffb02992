//! Stored readings that rules can judge.

use std::str::FromStr;

use deadpool_postgres::Transaction;
use garenne::handler::ReadingRow;
use garenne_database::{Parameters, QueryResult, Tables, column};
use garenne_protocol::sensor::Unit;
use garenne_sensors::{
    alarm::{Micros, Sample, Span},
    reading::Flag,
};

use crate::micros::{micros, timestamp};

/// A span of the readings of a device's metric.
pub(super) struct SeriesSpan<'a> {
    pub(super) device: &'a str,
    pub(super) metric: &'a str,
    pub(super) span: Span,
}

/// As the function `<prefix>_is_usable` of the database. A flag of another program is no doubt.
pub(super) fn is_usable(row: &ReadingRow) -> bool {
    !row.quality.iter().any(|flag| Flag::from_str(flag).is_ok_and(Flag::concerns_value))
}

/// The statements that load spans of a fleet's readings.
pub(super) struct SpanStatements {
    oldest: String,
    oldest_and_newest: String,
}

impl SpanStatements {
    pub(super) fn new(tables: &Tables) -> Self {
        // The limits of all spans let the server choose the partitions before it plans the statement.
        let part = |condition: &str, order: &str| {
            format!(
                "(SELECT r.time, r.value, r.unit, r.start_time FROM {tables}_readings AS r
                  WHERE {condition} r.device = k.device AND r.metric = k.metric AND r.time >= k.low AND r.time < k.high
                    AND r.time >= $7 AND r.time < $8 AND {tables}_is_usable(r.quality)
                  ORDER BY r.time {order} LIMIT k.wanted)"
            )
        };
        let statement = |parts: String| {
            format!(
                "SELECT k.place, p.time, p.value, p.unit, p.start_time
                 FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::timestamptz[], $5::bool[], $6::int8[])
                      WITH ORDINALITY AS k(device, metric, low, high, newest_first, wanted, place)
                 CROSS JOIN LATERAL ({parts}) AS p"
            )
        };
        let (oldest, newest) = (part("NOT k.newest_first AND", ""), part("k.newest_first AND", "DESC"));
        Self {
            oldest: statement(oldest.clone()),
            oldest_and_newest: statement(format!("{oldest} UNION ALL {newest}")),
        }
    }

    /// The readings of each span.
    pub(super) async fn load(
        &self,
        transaction: &Transaction<'_>,
        spans: &[SeriesSpan<'_>],
    ) -> QueryResult<Vec<Vec<Sample>>> {
        let statement = match spans.iter().any(|span| span.span.newest_first) {
            true => &self.oldest_and_newest,
            false => &self.oldest,
        };
        let statement = transaction.prepare_cached(statement).await?;
        let low = spans.iter().map(|span| span.span.low).min().unwrap_or(Micros::MIN);
        let high = spans.iter().map(|span| span.span.high).max().unwrap_or(Micros::MAX);
        let parameters: Parameters<'_, 8> = [
            &column(spans, |span| span.device),
            &column(spans, |span| span.metric),
            &column(spans, |span| timestamp(span.span.low)),
            &column(spans, |span| timestamp(span.span.high)),
            &column(spans, |span| span.span.newest_first),
            &column(spans, |span| i64::try_from(span.span.limit).unwrap_or(i64::MAX)),
            &timestamp(low),
            &timestamp(high),
        ];
        let mut samples = vec![Vec::new(); spans.len()];
        for row in transaction.query(&statement, &parameters).await? {
            let unit = row.get::<_, Option<&str>>(3).and_then(|symbol| Unit::parse(symbol).ok());
            let start = row.get::<_, Option<_>>(4).map(micros);
            let sample = Sample { at: micros(row.get(1)), value: row.get(2), unit, start };
            let place: i64 = row.get(0);
            samples[usize::try_from(place - 1).expect("a place in the parameters")].push(sample);
        }
        for (samples, SeriesSpan { span, .. }) in samples.iter_mut().zip(spans) {
            samples.sort_unstable_by_key(|sample| sample.at);
            if span.newest_first {
                samples.reverse();
            }
        }
        Ok(samples)
    }
}
