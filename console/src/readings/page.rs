//! A page of a series: reads its readings, and writes those that a calibration changes.

use std::collections::{BTreeSet, HashMap};

use deadpool_postgres::Transaction;
use garenne_database::{
    Connection, QueryResult, Tables, column,
    derived::{Key, Place, Reading},
};
use garenne_protocol::sensor::{Counter, SentCounter, Unit};
use garenne_readings::{Calibration, NO_CALIBRATION, derive};
use time::OffsetDateTime;
use tokio_postgres::types::{Json, ToSql};

use super::{report::Counts, row::Row, selection::Series};

/// Readings of a page, at most.
pub(super) const PAGE: i64 = 2_000;

/// The statements for pages of a fleet's readings.
pub(super) struct Pages {
    calibration: Calibration,
    load: String,
    sent_units: String,
    update: String,
    newest: String,
    declare: String,
}

/// The rows of a page, and the changes to write.
#[derive(Default)]
pub(super) struct Page {
    pub(super) counts: Counts,
    /// The time of the last reading, if there may be more.
    pub(super) last: Option<OffsetDateTime>,
    /// Each changed reading as it is and as it will be.
    pub(super) changed: Vec<Change>,
    /// The times of the other readings that values may be derived from.
    pub(super) inputs: Vec<OffsetDateTime>,
}

/// A reading before and after.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) before: Row,
    pub(super) after: Row,
}

impl Change {
    /// Whether value, unit and flags stay.
    pub(super) fn reads_same(&self) -> bool {
        self.before.reads_as(&self.after)
    }

    /// The reading of a series as it will be.
    pub(super) fn reading<'a>(&'a self, Series { device, metric }: &'a Series) -> Reading<'a> {
        let Row { time, value, unit, quality, .. } = &self.after;
        let key = Key::new(device, metric, *time);
        Reading { key, value: *value, unit: unit.as_deref(), quality }
    }

    /// Whether values may be derived from the reading, before the change or after it.
    fn concerns_derived(&self) -> bool {
        !self.reads_same() && (is_input(&self.before) || is_input(&self.after))
    }
}

/// Where values may be derived from changed readings of a device.
pub(super) fn places<'a>(device: &'a str, changed: &[Change]) -> BTreeSet<Place<'a>> {
    let concerned = changed.iter().filter(|change| change.concerns_derived());
    concerned.map(|change| (device, change.after.time)).collect()
}

/// Whether values may be derived from the reading.
fn is_input(row: &Row) -> bool {
    row.unit.as_deref().and_then(Unit::get).is_some_and(derive::is_input_unit)
}

/// A reading whose unit as sent is to be found.
struct Unidentified {
    row: Row,
    task_id: String,
}

impl Pages {
    pub(super) fn new(tables: &Tables, calibration: Calibration) -> Self {
        // What the sender says of a counter holds for the whole series, and a start time for its reading.
        let said = format!(
            "(SELECT s.sent_counter FROM {tables}_series AS s WHERE s.device = $1 AND s.metric = $2)"
        );
        let load = format!(
            "SELECT {}, task_id, start_time, {said}
             FROM {tables}_readings
             WHERE device = $1 AND metric = $2 AND time > $3 AND time <= $4 ORDER BY time LIMIT {PAGE}",
            Row::COLUMNS
        );
        // A result has `raw_unit` if it differs from `unit`.
        let sent_units = format!(
            "SELECT task_id, (reading->>'time')::timestamptz, coalesce(reading->>'raw_unit', reading->>'unit')
             FROM {tables}_results CROSS JOIN LATERAL jsonb_array_elements(
                 CASE jsonb_typeof(output->'readings') WHEN 'array' THEN output->'readings' ELSE '[]' END) AS reading
             WHERE task_id = ANY($1) AND kind = 'reading.process'
             AND reading->>'device' = $2 AND reading->>'metric' = $3"
        );
        // Does nothing to a reading that was replaced since it was read.
        let update = format!(
            "UPDATE {tables}_readings AS reading SET value = new.value, unit = new.unit, raw_unit = new.raw_unit,
                 quality = string_to_array(new.quality, ','), calibration = new.calibration
             FROM unnest($5::timestamptz[], $6::float8[], $7::text[], $8::text[], $9::text[], $10::text[],
                         $11::float8[], $12::text[])
                  AS new(time, value, unit, raw_unit, quality, calibration, raw, known_raw_unit)
             WHERE reading.device = $1 AND reading.metric = $2 AND reading.time = new.time
             AND reading.time BETWEEN $3 AND $4
             AND reading.raw = new.raw AND reading.raw_unit IS NOT DISTINCT FROM new.known_raw_unit"
        );
        let newest = format!(
            "SELECT time, raw_unit, {said} FROM {tables}_readings
             WHERE device = $1 AND metric = $2 AND raw IS NOT NULL ORDER BY time DESC LIMIT 1"
        );
        let declare = format!(
            "UPDATE {tables}_series AS s SET counter = $3, newest_counter = $3, pending_at = NULL,
                 declared_counter = CASE WHEN s.sent_counter IS NOT NULL THEN $3 END,
                 stale = {tables}_stale_with(s.stale, {tables}_all_hours(s.device, s.metric))
             WHERE s.device = $1 AND s.metric = $2 AND s.counter IS DISTINCT FROM $3"
        );
        Self { calibration, load, sent_units, update, newest, declare }
    }

    /// Reads the next readings of a series, and calibrates them.
    pub(super) async fn load(
        &self,
        transaction: &Transaction<'_>,
        series: &Series,
        after: OffsetDateTime,
        last: OffsetDateTime,
    ) -> QueryResult<Page> {
        let statement = transaction.prepare_cached(&self.load).await?;
        let parameters: [&(dyn ToSql + Sync); 4] = [&series.device, &series.metric, &after, &last];
        let stored = transaction.query(&statement, &parameters).await?;
        let mut page = Page::default();
        let mut unidentified = Vec::new();
        page.counts.read = stored.len() as u64;
        for stored in &stored {
            let Some(mut row) = Row::of(stored) else {
                page.counts.without_raw += 1;
                continue;
            };
            row.sent_counter = sent_counter(stored, 9).map(|sent| SentCounter {
                start: stored.get::<_, Option<OffsetDateTime>>(8).map(Into::into),
                ..sent
            });
            if is_input(&row) {
                page.inputs.push(row.time);
            }
            if row.is_corrected() {
                page.counts.corrected += 1;
            } else if row.calibration.is_none() && row.raw_unit.is_none() {
                unidentified.push(Unidentified { row, task_id: stored.get(7) });
            } else {
                self.calibrate(&mut page, series, row.clone(), row);
            }
        }
        self.identify(transaction, &mut page, series, unidentified).await?;
        if stored.len() as i64 == PAGE {
            page.last = stored.last().map(|row| row.get(0));
        }
        Ok(page)
    }

    /// Finds the units that older readings were sent with in the results of their tasks.
    async fn identify(
        &self,
        transaction: &Transaction<'_>,
        page: &mut Page,
        series: &Series,
        unidentified: Vec<Unidentified>,
    ) -> QueryResult<()> {
        if unidentified.is_empty() {
            return Ok(());
        }
        let tasks: BTreeSet<_> = unidentified.iter().map(|reading| &*reading.task_id).collect();
        let tasks: Vec<_> = tasks.into_iter().collect();
        let statement = transaction.prepare_cached(&self.sent_units).await?;
        let parameters: [&(dyn ToSql + Sync); 3] = [&tasks, &series.device, &series.metric];
        let found = transaction.query(&statement, &parameters).await?;
        let mut units: HashMap<(&str, OffsetDateTime), Option<String>> = HashMap::new();
        for row in &found {
            units.insert((row.get(0), row.get(1)), row.get(2));
        }
        for Unidentified { row, task_id } in unidentified {
            match units.get(&(&*task_id, row.time)) {
                Some(unit) => {
                    let known = Row { raw_unit: unit.clone(), ..row.clone() };
                    self.calibrate(page, series, row, known);
                }
                None => page.counts.without_raw_unit += 1,
            }
        }
        Ok(())
    }

    /// Calibrates a stored reading. `known` is the reading with the unit that it was sent with.
    fn calibrate(&self, page: &mut Page, series: &Series, before: Row, known: Row) {
        let Some(after) = known.recalibrated(series, &self.calibration) else {
            page.counts.without_raw_unit += 1;
            return;
        };
        if before == after {
            page.counts.unchanged += 1;
            return;
        }
        page.counts.changed += 1;
        let had_rule = before.calibration.as_deref().is_some_and(|version| version != NO_CALIBRATION);
        page.counts.without_rule +=
            u64::from(had_rule && after.calibration.as_deref() == Some(NO_CALIBRATION));
        let change = Change { before, after };
        page.counts.value_changed += u64::from(!change.reads_same());
        page.changed.push(change);
    }

    /// Writes changed readings. Returns whether all of them are as they were read.
    pub(super) async fn update(
        &self,
        transaction: &Transaction<'_>,
        series: &Series,
        changed: &[Change],
    ) -> QueryResult<bool> {
        let (Some(first), Some(last)) = (changed.first(), changed.last()) else { return Ok(true) };
        let statement = transaction.prepare_cached(&self.update).await?;
        let parameters: [&(dyn ToSql + Sync); 12] = [
            &series.device,
            &series.metric,
            &first.after.time,
            &last.after.time,
            &column(changed, |change| change.after.time),
            &column(changed, |change| change.after.value),
            &column(changed, |change| change.after.unit.as_deref()),
            &column(changed, |change| change.after.raw_unit.as_deref()),
            &column(changed, |change| change.after.quality.join(",")),
            &column(changed, |change| change.after.calibration.as_deref()),
            &column(changed, |change| change.after.raw),
            &column(changed, |change| change.before.raw_unit.as_deref()),
        ];
        Ok(transaction.execute(&statement, &parameters).await? == changed.len() as u64)
    }
}

impl Pages {
    /// Stores how the consumption of the series follows from its values, by the calibration of its newest reading. If that
    /// changes, all its rollups are computed again.
    pub(super) async fn declare_counter(&self, client: &Connection, series: &Series) -> QueryResult<()> {
        let Series { device, metric } = series;
        let newest = client.prepare_cached(&self.newest).await?;
        let Some(row) = client.query_opt(&newest, &[device, metric]).await? else { return Ok(()) };
        let raw_unit = row.get::<_, Option<&str>>(1).and_then(Unit::get);
        let time: OffsetDateTime = row.get(0);
        let sent = sent_counter(&row, 2);
        let counter = self.calibration.calibrate(device, metric, time.into(), 1.0, raw_unit, sent).counter;
        let declare = client.prepare_cached(&self.declare).await?;
        client.execute(&declare, &[device, metric, &counter.map(Json)]).await.map(drop)
    }
}

/// What the sender says of the counter of a series.
fn sent_counter(row: &tokio_postgres::Row, index: usize) -> Option<SentCounter> {
    let Json::<Counter>(counter) = row.try_get(index).ok()?;
    Some(counter.into())
}
