//! `GET /v1/lanes/history`: the figures of lanes over an hour, a day or a week, as workers have stored them.

use std::collections::BTreeMap;

use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
};
use garenne_protocol::sensor::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::dashboard::{app_state::App, problem::Problem, workers_database::in_time};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::dashboard) struct Parameters {
    range: Range,
}

#[derive(Clone, Copy, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum Range {
    Hour,
    Day,
    Week,
}

impl Range {
    /// Its length and that of a step, in seconds.
    fn seconds(self) -> (i64, i64) {
        match self {
            Self::Hour => (3_600, 60),
            Self::Day => (86_400, 300),
            Self::Week => (604_800, 1_800),
        }
    }
}

/// A lane's figures by step. A step that no worker has stored anything of is null.
#[derive(Clone, Serialize)]
struct LaneHistory {
    ready: Vec<Option<f64>>,
    unacked: Vec<Option<f64>>,
    busy: Vec<Option<f64>>,
    slots: Vec<Option<f64>>,
    settled: Vec<Option<i64>>,
}

pub(in crate::dashboard) async fn lane_history(
    State(app): App,
    parameters: Result<Query<Parameters>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let Query(Parameters { range }) = parameters?;
    let database = app.database()?;
    let (tables, snapshot) = (&database.tables, database.snapshot().await?);
    // Means are by the time that somebody has observed.
    let select = format!(
        "SELECT lane, extract(epoch FROM bin)::int8, longest, settled, ready, unacked / seen, busy / seen, slots / seen
         FROM (SELECT lane, date_bin(make_interval(secs => $1::int8), time, '1970-01-01Z') AS bin,
                      max(step_seconds) AS longest, sum(settled)::int8 AS settled,
                      sum(ready_seconds) / nullif(sum(ready_weight), 0) AS ready, sum(held_seconds) AS unacked,
                      sum(busy_seconds) AS busy, sum(slot_seconds) AS slots, range_agg(tstzrange(since, upto)) AS parts
               FROM {tables}_lane_history WHERE time >= $2 GROUP BY 1, 2) AS steps,
              LATERAL (SELECT sum(extract(epoch FROM upper(part) - lower(part)))::float8 AS seen
                       FROM unnest(parts) AS part) AS observed"
    );
    let now: OffsetDateTime = in_time(snapshot.query_one("SELECT now()", &[])).await?.get(0);
    let (length, mut step) = range.seconds();
    let (from, rows) = loop {
        let (last, count) = (now.unix_timestamp() / step * step, length / step);
        let from = last - (count - 1) * step;
        let begin = OffsetDateTime::from_unix_timestamp(from).expect("a time of this century");
        let rows = in_time(snapshot.query(&select, &[&step, &begin])).await?;
        // Workers that store longer steps would leave gaps between them.
        match rows.iter().map(|row| i64::from(row.get::<_, i32>(2))).max() {
            Some(longest) if longest > step => step = longest,
            _ => break (begin, rows),
        }
    };
    snapshot.end().await;
    let count = (length / step) as usize;
    let nothing = LaneHistory {
        ready: vec![None; count],
        unacked: vec![None; count],
        busy: vec![None; count],
        slots: vec![None; count],
        settled: vec![None; count],
    };
    let mut lanes = BTreeMap::new();
    for row in &rows {
        let place = usize::try_from((row.get::<_, i64>(1) - from.unix_timestamp()) / step);
        // A worker's step may have begun in the future of this transaction.
        let Some(place) = place.ok().filter(|place| *place < count) else { continue };
        let lane: &mut LaneHistory = lanes.entry(row.get::<_, String>(0)).or_insert_with(|| nothing.clone());
        let figure = |column: usize| row.get::<_, Option<f64>>(column).map(|it| (it * 1e3).round() / 1e3);
        lane.settled[place] = row.get(3);
        lane.ready[place] = figure(4);
        lane.unacked[place] = figure(5);
        lane.busy[place] = figure(6);
        lane.slots[place] = figure(7);
    }
    Ok(Json(json!({
        "range": range,
        "step_seconds": step,
        "from": Timestamp::from(from),
        "lanes": lanes,
    })))
}
