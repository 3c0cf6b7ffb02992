//! `garenne task find`: where a task is.

use std::time::SystemTime;

use clap::Args;
use garenne_common::exit::{Exit, Failure};
use garenne_operator::{
    operator::Operator,
    output,
    queues::{LookLimits, QueuedTask, Seen, Snapshot},
    table::{duration, lay_out},
};
use garenne_protocol::{heartbeat::Program, task::epoch_ms};
use serde_json::json;

use crate::{
    fleet::{MemberView, poll_workers},
    look::look_at,
    missing_right,
    queue::row,
};

/// `garenne task find`.
#[derive(Args, Clone, Debug)]
pub struct FindArgs {
    /// The task's id
    #[arg(value_name = "ID")]
    id: String,
    /// Which queues are looked at.
    #[command(flatten)]
    limits: LookLimits,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A worker that runs the task.
#[derive(Debug, PartialEq)]
struct Running {
    worker: String,
    kind: String,
    lane: String,
    seconds: f64,
}

/// The workers that run the task, as far as their heartbeats list it.
fn running(workers: &[MemberView], id: &str) -> Vec<Running> {
    let beats = workers.iter().filter_map(|worker| worker.process.heartbeat());
    let of_id =
        beats.flat_map(|beat| beat.tasks.iter().filter(|task| task.id == id).map(|task| (&beat.id, task)));
    of_id
        .map(|(worker, task)| Running {
            worker: worker.clone(),
            kind: task.kind.clone(),
            lane: task.lane.clone(),
            seconds: task.seconds,
        })
        .collect()
}

/// Tasks that run and that heartbeats do not list.
fn unlisted(workers: &[MemberView]) -> usize {
    let beats = workers.iter().filter_map(|worker| worker.process.heartbeat());
    beats.map(|beat| beat.running.saturating_sub(beat.tasks.len())).sum()
}

pub(super) async fn run(operator: &Operator, args: &FindArgs) -> Result<Exit, Failure> {
    let FindArgs { id, limits, json } = args;
    let mut unsearched = Vec::new();
    let workers = match poll_workers(operator).await {
        Ok(roster) => roster.members(Program::Worker, epoch_ms(SystemTime::now())),
        Err(failure) => {
            unsearched.push(format!("the workers: {}", missing_right::named(failure)));
            Vec::new()
        }
    };
    let running = running(&workers, id);
    let unlisted = unlisted(&workers);
    if unlisted > 0 {
        unsearched.push(format!("{unlisted} running tasks that heartbeats do not list"));
    }
    let queued = search(operator, id, *limits, &mut unsearched).await?;
    let is_found = !running.is_empty() || !queued.is_empty();
    if *json {
        let running = running.iter().map(
            |it| json!({ "worker": it.worker, "kind": it.kind, "lane": it.lane, "seconds": it.seconds }),
        );
        let found = json!({
            "id": id, "running": running.collect::<Vec<_>>(), "queued": queued, "not_searched": unsearched,
        });
        output::json(&format!("{found:#}\n"))?;
    } else {
        if is_found {
            output::lines(&table(&running, &queued))?;
        }
        unsearched.iter().for_each(|what| output::note(format_args!("not searched: {what}")));
    }
    if !is_found {
        return Err(Failure::new(Exit::Failed, format_args!("no task {id:?} is in what was searched")));
    }
    Ok(Exit::Done)
}

/// Searches the fleet's queues. Adds to `unsearched` what could not be searched.
async fn search(
    operator: &Operator,
    id: &str,
    limits: LookLimits,
    unsearched: &mut Vec<String>,
) -> Result<Vec<QueuedTask>, Failure> {
    let snapshot = Snapshot::take(operator).await?;
    let connection = operator.connect().await?;
    let mut found = Vec::new();
    for (name, status) in snapshot.queues.iter().filter(|(_, status)| status.ready > 0) {
        if let Some(obstacle) = limits.obstacle(*status) {
            unsearched.push(format!("{name}: {obstacle}"));
            continue;
        }
        let visit = |seen: Seen<'_>| {
            if seen.has_id(id) {
                found.push(seen.task);
            }
        };
        if let Err(failure) = look_at(operator, &connection, name, limits, visit).await {
            if failure.exit == Exit::BrokerUnavailable {
                return Err(failure);
            }
            unsearched.push(format!("{name}: {}", missing_right::named(failure)));
        }
    }
    Operator::leave(connection).await;
    Ok(found)
}

fn table(running: &[Running], queued: &[QueuedTask]) -> String {
    let mut rows: Vec<[String; 5]> = Vec::new();
    for it in running {
        let since = format!("for {}", duration((it.seconds * 1e3) as u64));
        rows.push([
            format!("running on {}", it.worker),
            it.kind.clone(),
            "-".to_owned(),
            "-".to_owned(),
            since,
        ]);
    }
    for task in queued {
        let [_, kind, _, attempts, published, due, _] = row(task);
        rows.push([task.queue.clone(), kind, attempts, published, due]);
    }
    lay_out(&["where", "kind", ">attempts", ">published", ">due"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Roster;

    #[test]
    fn a_running_task_is_found_on_each_worker_that_lists_it() {
        let mut roster = Roster::new(0);
        for worker in ["v", "w"] {
            let beat = serde_json::from_value(json!({
                "program": "worker", "id": worker, "incarnation": "i", "started_at": 0, "at": 0, "every_ms": 1_000,
                "stance": "open", "running": 3, "tasks": [{"id": worker, "kind": "k", "lane": "fast", "seconds": 2.5}],
            }));
            roster.record(beat.unwrap(), 0);
        }
        let workers = roster.members(Program::Worker, 0);
        let on_w = Running { worker: "w".into(), kind: "k".into(), lane: "fast".into(), seconds: 2.5 };
        assert_eq!(running(&workers, "w"), [on_w]);
        assert_eq!((running(&workers, "x"), unlisted(&workers)), (Vec::new(), 4));
    }
}
