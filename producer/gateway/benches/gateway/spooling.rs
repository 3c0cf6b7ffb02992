//! A gateway with a spool against the same gateway that publishes: answers per second, and the rate of draining.

use std::{path::Path, time::Instant};

use garenne_bench::Rows;
use garenne_common::config::Size;
use garenne_protocol::{
    sensor::{Reading, Timestamp},
    task::{ContentType, Kind, NewTask, reading_id},
};
use garenne_publish::{SpoolDrain, SpoolSettings};
use garenne_spool::{Spool, task::record_of};

use crate::{
    Plan,
    child::{Backend, PublishMode, broker_sender},
    load::Load,
    measure,
};

/// Records that are drained.
const DRAINED: u64 = 100_000;
/// Records of one append.
const APPEND: u64 = 1000;

/// Settings of a spool in this directory, drained as fast as the broker confirms.
pub(crate) fn settings(directory: &Path) -> SpoolSettings {
    SpoolSettings {
        spool: Some(directory.to_owned()),
        spool_min_free: Size(0),
        spool_drain_rate: 0,
        ..SpoolSettings::default()
    }
}

/// Measures one round.
pub(crate) async fn run(plan: &Plan, url: &str, rows: &mut Rows) {
    for load in [Load::Http, Load::Pipelined] {
        for (backend, name) in [
            (Backend::Broker { url: url.to_owned(), mode: PublishMode::Gathered }, "confirmed"),
            (Backend::Spooled, "spooled"),
        ] {
            let result = measure("connection-pool", &backend, load, plan.seconds).await;
            result.add_to(rows, &format!("gateway/spool/{load}/{name}"));
        }
    }
    rows.add("gateway/spool/drain/per_s", "readings/s", drain(url).await);
}

/// The ratios of the rows, after all rounds.
pub(crate) fn compare(rows: &mut Rows) {
    for load in [Load::Http, Load::Pipelined] {
        let row = |name: &str| format!("gateway/spool/{load}/{name}/per_s");
        let (spooled, confirmed) = (row("spooled"), row("confirmed"));
        rows.compare(format!("gateway/spool/{load}/spooled ÷ confirmed"), &spooled, &confirmed);
        let name = format!("gateway/spool/drain ÷ {load} confirmed");
        rows.compare(name, "gateway/spool/drain/per_s", &confirmed);
    }
}

/// Fills a spool and drains it. Returns the records per second of draining.
async fn drain(url: &str) -> f64 {
    let folder = tempfile::tempdir().expect("a directory");
    let settings = settings(folder.path());
    let spool = settings.open().await.expect("a spool").expect("it is set");
    for first in (0..DRAINED).step_by(APPEND as usize) {
        append(&spool, first).await;
    }
    let mut drain = SpoolDrain::new(spool, broker_sender(url, true).await, None);
    let began = Instant::now();
    while drain.next_batch().await.expect("the broker confirms") > 0 {}
    DRAINED as f64 / began.elapsed().as_secs_f64()
}

async fn append(spool: &Spool, first: u64) {
    let kind = Kind::parse("reading.process").expect("a constant");
    let now = std::time::SystemTime::now();
    let records = (first..first + APPEND).map(|number| {
        let reading = Reading {
            device: "greenhouse-1".into(),
            metric: "temperature".into(),
            value: 21.5,
            unit: None,
            counter: None,
            time: Timestamp::from_micros(i64::try_from(number).expect("small")).expect("in range"),
        };
        let body = serde_json::to_vec(&reading).expect("plain JSON");
        let task =
            NewTask { id: reading_id(&reading), ..NewTask::new(kind.clone(), ContentType::Json, body) };
        record_of(&task, now)
    });
    spool.append(records.collect()).await.expect("room");
}
