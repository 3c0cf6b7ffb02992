//! The table of series: for each device and metric the newest reading, when one was stored last, the hours whose
//! rollups are to be computed, and the state of rules.

use std::collections::{BTreeMap, HashMap};

use deadpool_postgres::Transaction;
use garenne_alarms::{ChangedReading, NewReading, SeriesPending};
use garenne_database::{Parameters, QueryResult, Tables, column, rollups::StaleHours};
use garenne_sensors::reading_row::ReadingRow;
use time::OffsetDateTime;
use tokio_postgres::types::Json;

use crate::versions::accepted_at_of;

/// The statement that updates a fleet's series.
pub(super) fn update_statement(tables: &Tables) -> String {
    // A row without hours has only a declaration: its reading was stored before, or another version of it is.
    let only_declares = "isempty(excluded.stale)";
    let newest = format!("excluded.last_time >= series.last_time AND NOT {only_declares}");
    let of_newest =
        |name: &str| format!("{name} = CASE WHEN {newest} THEN excluded.{name} ELSE series.{name} END");
    let of_newest = ["last_value", "last_unit", "last_quality"].map(of_newest).join(", ");
    let of_changed = |name: &str, changed: &str| {
        format!("{name} = CASE WHEN {only_declares} THEN series.{name} ELSE {changed} END")
    };
    // What the newest reading says of the counter holds, and if it says nothing, what the newest one says that does; of several
    // for one time, the latest version. So the order of arrival does not matter.
    let declaration = |of: &str| {
        format!(
            "({of}.declared_at, coalesce({of}.declared_accepted, '-infinity'), coalesce({of}.declared_sequence, 0),
              coalesce({of}.declared_task, ''))"
        )
    };
    let is_newest_declaring = format!(
        "excluded.declared_at IS NOT NULL
         AND (series.declared_at IS NULL OR {} >= {})",
        declaration("excluded"),
        declaration("series")
    );
    let of_newest_declaring = |name: &str, before: &str| {
        format!("CASE WHEN {is_newest_declaring} THEN excluded.{name} ELSE {before} END")
    };
    // Workers of the version before the last write `counter` and `sent_counter` only.
    let newest_counter = format!(
        "CASE WHEN {newest} THEN excluded.newest_counter WHEN series.sent_counter IS NULL THEN series.counter
              ELSE series.newest_counter END"
    );
    let declared_counter = of_newest_declaring(
        "declared_counter",
        "CASE WHEN series.declared_at IS NULL AND series.sent_counter IS NOT NULL THEN series.counter
              ELSE series.declared_counter END",
    );
    let [declared_at, accepted, sequence, task, sent_counter] =
        ["declared_at", "declared_accepted", "declared_sequence", "declared_task", "sent_counter"]
            .map(|name| of_newest_declaring(name, &format!("series.{name}")));
    let counter = format!(
        "CASE WHEN {declared_at} >= CASE WHEN {newest} THEN excluded.last_time ELSE series.last_time END
              THEN {declared_counter} ELSE coalesce({newest_counter}, {declared_counter}) END"
    );
    let stored_at = of_changed("stored_at", "excluded.stored_at");
    let pending = of_changed("pending", "excluded.pending");
    let pending_at = of_changed(
        "pending_at",
        "CASE WHEN excluded.pending_at = series.stored_at THEN excluded.stored_at END",
    );
    // The consumption of an hour depends on the reading before it, so that of the next reading changes with this one.
    // The state of rules is that of the readings which the transaction has seen, so none may have been stored since then.
    format!(
        "INSERT INTO {tables}_series AS series
             (device, metric, last_time, last_value, last_unit, last_quality, stored_at, stale, pending, pending_at, counter,
              newest_counter, declared_at, declared_counter, sent_counter, declared_accepted, declared_sequence, declared_task)
         SELECT device, metric, time, value, unit, string_to_array(quality, ','), clock_timestamp(), stale, pending, seen,
                CASE WHEN declared_at >= time THEN declared_counter ELSE coalesce(newest_counter, declared_counter) END,
                newest_counter, declared_at, declared_counter, sent_counter, declared_accepted, declared_sequence,
                declared_task
         FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::float8[], $5::text[], $6::text[],
                     $7::tstzmultirange[], $8::jsonb[], $9::timestamptz[], $10::jsonb[], $11::timestamptz[], $12::jsonb[],
                     $13::jsonb[], $14::timestamptz[], $15::int4[], $16::text[])
              AS input(device, metric, time, value, unit, quality, stale, pending, seen, newest_counter, declared_at,
                       declared_counter, sent_counter, declared_accepted, declared_sequence, declared_task)
         ON CONFLICT (device, metric) DO UPDATE SET {stored_at}, {pending}, {pending_at},
             stale = CASE
                 WHEN {counter} IS DISTINCT FROM series.counter
                     THEN {tables}_stale_with(series.stale + excluded.stale, {tables}_all_hours(series.device, series.metric))
                 WHEN series.counter IS NOT NULL THEN {tables}_stale_with(series.stale + excluded.stale,
                     {tables}_hours_after(series.device, series.metric, excluded.stale))
                 WHEN series.stale @> excluded.stale THEN series.stale
                 ELSE {tables}_stale_with(series.stale, excluded.stale) END,
             counter = {counter}, newest_counter = {newest_counter}, declared_at = {declared_at},
             declared_counter = {declared_counter}, sent_counter = {sent_counter}, declared_accepted = {accepted},
             declared_sequence = {sequence}, declared_task = {task},
             last_time = greatest(excluded.last_time, series.last_time), {of_newest}"
    )
}

/// What a batch says of a series.
struct Newest<'a> {
    /// The newest changed reading, or one that only declares.
    row: &'a ReadingRow,
    /// The newest one that says something of a counter; of several for one time, the latest version.
    declaring: Option<Declaration<'a>>,
}

#[derive(Clone, Copy)]
struct Declaration<'a> {
    row: &'a ReadingRow,
    accepted: (OffsetDateTime, i32),
    task: &'a str,
}

impl Declaration<'_> {
    fn order(&self) -> (OffsetDateTime, (OffsetDateTime, i32), &str) {
        (self.row.time, self.accepted, self.task)
    }
}

/// Updates the series of changed readings and of those that declare a counter, and the state of rules of those that have one.
/// The last statement before the commit, because transactions that change readings of the same series wait here for each
/// other; they do so in the order of device and metric.
pub(super) async fn update(
    transaction: &Transaction<'_>,
    statement: &str,
    changed: &[ChangedReading<'_>],
    declaring: &[NewReading<'_>],
    pending: &HashMap<(&str, &str), SeriesPending>,
) -> QueryResult<()> {
    let mut series: BTreeMap<(&str, &str), (Newest<'_>, StaleHours)> = BTreeMap::new();
    for ChangedReading { row, .. } in changed {
        let key = (&*row.device, &*row.metric);
        let first = || (Newest { row, declaring: None }, StaleHours::default());
        let (newest, hours) = series.entry(key).or_insert_with(first);
        hours.extend([row.time]);
        if row.time > newest.row.time {
            newest.row = row;
        }
    }
    for (_, finished, row) in declaring {
        let key = (&*row.device, &*row.metric);
        let declaration =
            Declaration { row, accepted: accepted_at_of(finished), task: finished.envelope.id.as_str() };
        let first = || (Newest { row, declaring: None }, StaleHours::default());
        let (newest, _) = series.entry(key).or_insert_with(first);
        if newest.declaring.is_none_or(|known| declaration.order() > known.order()) {
            newest.declaring = Some(declaration);
        }
    }
    if series.is_empty() {
        return Ok(());
    }
    let pending: Vec<_> = series.keys().map(|key| pending.get(key)).collect();
    let (rows, hours): (Vec<_>, Vec<_>) = series.into_values().unzip();
    let statement = transaction.prepare_cached(statement).await?;
    let parameters: Parameters<'_, 16> = [
        &column(&rows, |newest| &*newest.row.device),
        &column(&rows, |newest| &*newest.row.metric),
        &column(&rows, |newest| newest.row.time),
        &column(&rows, |newest| newest.row.value),
        &column(&rows, |newest| newest.row.unit),
        &column(&rows, |newest| newest.row.quality.join(",")),
        &hours,
        &column(&pending, |pending| pending.map(|pending| Json(&pending.rules))),
        &column(&pending, |pending| pending.and_then(|pending| pending.stored_at)),
        &column(&rows, |newest| newest.row.counter.map(Json)),
        &column(&rows, |newest| newest.declaring.map(|it| it.row.time)),
        &column(&rows, |newest| newest.declaring.and_then(|it| it.row.counter).map(Json)),
        &column(&rows, |newest| Some(Json(newest.declaring?.row.sent_counter?.counter()))),
        &column(&rows, |newest| newest.declaring.map(|it| it.accepted.0)),
        &column(&rows, |newest| newest.declaring.map(|it| it.accepted.1)),
        &column(&rows, |newest| newest.declaring.map(|it| it.task)),
    ];
    transaction.execute(&statement, &parameters).await.map(drop)
}
