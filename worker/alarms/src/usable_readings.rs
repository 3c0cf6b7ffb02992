//! Stored readings that rules can judge.

use std::str::FromStr;

use deadpool_postgres::Transaction;
use garenne_database::{Parameters, QueryResult, Tables, column};
use garenne_protocol::sensor::Unit;
use garenne_sensors::{reading::Flag, reading_row::ReadingRow};

use crate::{
    alarm::{Micros, Sample, Span},
    micros::{micros, timestamp},
};

/// A span of the readings of a device's metric.
pub(super) struct SeriesSpan<'a> {
    pub(super) device: &'a str,
    pub(super) metric: &'a str,
    pub(super) span: Span,
    /// Whether a rule judges consumption.
    pub(super) is_counter: bool,
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
        // The time of the zero before the first reading that counts, as `<prefix>_counter_steps` of the database takes it.
        let is_before = |earlier: &str| {
            format!("{earlier}.device = r.device AND {earlier}.metric = r.metric AND {earlier}.time < r.time")
        };
        let zero = format!(
            "CASE WHEN k.is_counter AND NOT EXISTS (
                 SELECT FROM {tables}_readings AS e
                 WHERE {} AND {tables}_is_counted(e.quality, e.value, e.start_time)) THEN (
                 SELECT z.time FROM {tables}_readings AS z
                 WHERE {} AND ('{}' = ANY(z.quality)
                     OR z.value = 0 AND z.start_time IS NULL AND {tables}_is_usable(z.quality))
                 ORDER BY z.time DESC LIMIT 1) END",
            is_before("e"),
            is_before("z"),
            <&str>::from(Flag::CounterZero)
        );
        let part = |condition: &str, order: &str| {
            format!(
                "(SELECT r.time, r.value, r.unit, r.start_time, {zero} AS zero FROM {tables}_readings AS r
                  WHERE {condition} r.device = k.device AND r.metric = k.metric AND r.time >= k.low AND r.time < k.high
                    AND r.time >= $7 AND r.time < $8 AND {tables}_is_usable(r.quality)
                  ORDER BY r.time {order} LIMIT k.wanted)"
            )
        };
        let statement = |parts: String| {
            format!(
                "SELECT k.place, p.time, p.value, p.unit, p.start_time, p.zero
                 FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::timestamptz[], $5::bool[], $6::int8[],
                             $9::bool[])
                      WITH ORDINALITY AS k(device, metric, low, high, newest_first, wanted, is_counter, place)
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
        let parameters: Parameters<'_, 9> = [
            &column(spans, |span| span.device),
            &column(spans, |span| span.metric),
            &column(spans, |span| timestamp(span.span.low)),
            &column(spans, |span| timestamp(span.span.high)),
            &column(spans, |span| span.span.newest_first),
            &column(spans, |span| i64::try_from(span.span.limit).unwrap_or(i64::MAX)),
            &timestamp(low),
            &timestamp(high),
            &column(spans, |span| span.is_counter),
        ];
        let mut samples = vec![Vec::new(); spans.len()];
        for row in transaction.query(&statement, &parameters).await? {
            let unit = row.get::<_, Option<&str>>(3).and_then(|symbol| Unit::parse(symbol).ok());
            let start = row.get::<_, Option<_>>(4).map(micros);
            let zero = row.get::<_, Option<_>>(5).map(micros);
            let sample = Sample { at: micros(row.get(1)), value: row.get(2), unit, start, zero };
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
