//! Adds up a day of sales: a long task that resumes where the attempt before it ended.
//!
//! `SALES/<day>/<hour>.csv` has a number on each line. The sum of each hour is saved as soon as it is known, so that an attempt
//! after a crash, a stop or an error reads only the hours that are left.

use std::{collections::BTreeMap, env, fs::OpenOptions, io::Write, path::PathBuf, time::Duration};

use garenne::{Data, Exit, TaskContext, TaskError, TaskOptions, cli, json_payload};
use tokio::fs;

#[derive(serde::Deserialize)]
struct Report {
    day: u32,
}
json_payload!(Report, "report.nightly");

struct Sales(PathBuf);

async fn build(cx: TaskContext, sales: Data<Sales>, report: Report) -> garenne::Result<u64> {
    let day = sales.0.join(report.day.to_string());
    let mut saved = OpenOptions::new().create(true).append(true).open(day.join("sums"))?;
    let mut sums = BTreeMap::new();
    for line in fs::read_to_string(day.join("sums")).await?.lines() {
        let (hour, sum) = line.split_once(' ').ok_or_else(|| TaskError::reject("a sum without an hour"))?;
        sums.insert(hour.parse::<u32>()?, sum.parse()?);
    }
    for hour in 0..24 {
        if sums.contains_key(&hour) {
            continue;
        }
        let file = tokio::select! {
            file = fs::read_to_string(day.join(format!("{hour}.csv"))) => file?,
            () = cx.token().cancelled() => return Err(TaskError::interrupted().into()),
        };
        let sum = file.lines().map(str::parse::<u64>).sum::<Result<_, _>>().map_err(TaskError::reject)?;
        saved.write_all(format!("{hour} {sum}\n").as_bytes())?; // one write: another run may save as well
        sums.insert(hour, sum);
        cx.progress(sums.len() as f64 / 24.0);
    }
    Ok(sums.values().sum())
}

fn main() -> Exit {
    cli::run("report", |worker| {
        let sales = Sales(env::var("SALES")?.into());
        Ok(worker.data(sales).handle_with(build, TaskOptions::long().deadline(Duration::from_secs(1200))))
    })
}
