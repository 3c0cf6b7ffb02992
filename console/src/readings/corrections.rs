//! `garenne readings corrections`: what was corrected, by whom and why.

use garenne_common::exit::{Exit, Failure};
use garenne_database::{PostgresPool, Tables, muting::device_matches};
use garenne_operator::{
    output,
    table::{grouped, lay_out},
};
use serde_json::Value;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio_postgres::types::ToSql;

use super::{cli::CorrectionsArgs, selection::Selection, stored};

/// The columns of the table.
const COLUMNS: [&str; 9] = ["at", "by", "action", "device", "metric", "from", "to", ">readings", "reason"];

/// Prints the corrections, newest first: a row for each command and series, or with `--json` a line for each reading.
pub(super) async fn run(
    (pool, tables): (PostgresPool, Tables),
    selection: &Selection,
    args: &CorrectionsArgs,
) -> Result<Exit, Failure> {
    let matches = device_matches("$1", "device");
    let selected = format!(
        "FROM {tables}_corrections WHERE ($1::text IS NULL OR {matches}) AND ($2::text IS NULL OR metric = $2)
         AND time > $3 AND time <= $4"
    );
    let query = match args.json {
        true => format!(
            "SELECT row_to_json(c) FROM (SELECT command, action, device, metric, time, value, quality, was_value, was_unit,
                 was_quality, raw, raw_unit, calibration, task_id, worker, stored_at, start_time,
                 reason, corrected_by, corrected_at
             {selected} ORDER BY id DESC LIMIT $5) AS c"
        ),
        false => format!(
            "SELECT max(corrected_at), max(corrected_by), max(action), device, metric, min(time), max(time), count(*),
                    max(reason) {selected} GROUP BY command, device, metric ORDER BY max(id) DESC LIMIT $5"
        ),
    };
    let limit = i64::from(args.limit);
    let parameters: [&(dyn ToSql + Sync); 5] =
        [&selection.device(), &selection.metric(), &selection.after, &selection.last, &limit];
    let rows = stored::rows(&pool, &query, &parameters).await?;
    if args.json {
        output::json_lines(rows.iter().map(|row| row.get::<_, Value>(0)))?;
        return Ok(Exit::Done);
    }
    if rows.is_empty() {
        output::lines("no corrections\n")?;
        return Ok(Exit::Done);
    }
    let time = |time: OffsetDateTime| time.format(&Rfc3339).unwrap_or_default();
    let cells = rows.iter().map(|row| {
        let text = |index: usize| row.get::<_, String>(index);
        let count = u64::try_from(row.get::<_, i64>(7)).unwrap_or(0);
        [
            time(row.get(0)),
            text(1),
            text(2),
            text(3),
            text(4),
            time(row.get(5)),
            time(row.get(6)),
            grouped(count),
            text(8),
        ]
    });
    output::lines(&lay_out(&COLUMNS, cells))?;
    Ok(Exit::Done)
}
