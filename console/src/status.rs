//! `garenne status`: queues by lane, workers, gateways and bridges.

mod admin_ports;
mod producers;
mod view;
mod workers;

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use clap::Args;
use garenne_common::exit::{Exit, Failure};
use garenne_operator::{args::duration, operator::Operator, output, queues::Snapshot};
use garenne_protocol::{heartbeat::Program, task::epoch_ms, topology::Names};
use serde_json::json;

use crate::{
    audit_log::{PauseRecords, read_pauses},
    diagnose::{self, Facts, diagnose, needs_attention, verdict},
    fleet::{Pauses, Roster, count_unacked, paused, poll_fleet, unhandled},
    monitor::{database_problem, lanes},
    topology::find_differences,
};

/// `garenne status`.
#[derive(Clone, Debug, Args)]
pub struct StatusArgs {
    /// Also ask the admin port of a worker whose heartbeats do not arrive; repeatable
    #[arg(long = "worker", value_name = "URL", value_parser = admin_ports::admin_url)]
    pub workers: Vec<String>,
    /// Listen for heartbeats this long [default: until every worker has answered, at most 1s, and each gateway and bridge has sent one by itself: `events.heartbeat` and a tenth, at most 5s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub wait: Option<Duration>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub json: bool,
}

/// Prints what is wrong, the queues, the workers, the gateways and the bridges. The exit code is 1 if something needs
/// attention. If the workers cannot be polled, it shows the queues and a remark, and fails with that error.
pub async fn run(operator: &Operator, objective: Duration, args: &StatusArgs) -> Result<Exit, Failure> {
    let asking = async { database_problem(&operator.database_with(1).ok()?.0).await };
    // The queues last: they are read in milliseconds, and a poll may take a second.
    let (database_problem, polled, differences) =
        tokio::join!(asking, poll_fleet(operator, args.wait), find_differences(operator));
    let differences = differences.map_err(|failure| failure.to_string());
    let (poll, alarm) = match polled {
        Ok((roster, alarm)) => (Ok(roster), alarm),
        Err(failure) => (Err(failure), None),
    };
    let polled = epoch_ms(SystemTime::now());
    let mut snapshot = Snapshot::take(operator).await?;
    let asked = admin_ports::ask(&args.workers).await?;
    let now = epoch_ms(SystemTime::now());
    let unheard = Roster::new(now);
    let roster = poll.as_ref().unwrap_or(&unheard);
    let fleet_problem = poll.as_ref().err().map(ToString::to_string);
    let workers = roster.members(Program::Worker, now);
    // Workers that cannot be heard do not tell what is paused.
    let is_needed = fleet_problem.is_some() || alarm.is_some() || !paused(&workers).is_empty();
    let pauses = match is_needed {
        false => Ok(PauseRecords::new()),
        true => read_pauses(operator).await.map_err(|failure| failure.to_string()),
    };
    let problems = diagnose(&Facts {
        now,
        operator,
        queue_problem: None,
        fleet_problem: fleet_problem.as_deref(),
        alarm: alarm.as_deref(),
        database_problem: database_problem.as_deref(),
        snapshot: Some(&snapshot),
        lanes: &lanes(operator, roster, &snapshot, now),
        roster,
        objective,
        new_letters: None,
        differences: differences.as_deref().map_err(String::as_str),
        alarms_unseen: None,
        pauses: pauses.as_ref().map_err(String::as_str),
    });
    let pauses = Pauses::of(&workers);
    // As of the answers: tasks that are due since are not counted any more.
    let unhandled = unhandled(&roster.members(Program::Worker, polled));
    let uncertain = match &poll {
        Ok(roster) => count_lanes(&mut snapshot, roster, now),
        Err(_) => Vec::new(),
    };
    if args.json {
        let mut all = serde_json::to_value(&snapshot).map_err(anyhow::Error::from)?;
        all["verdict"] = json!(verdict(&problems));
        all["problems"] = json!(problems);
        all["source"] = json!(snapshot.origin(now));
        match &poll {
            Ok(roster) => {
                all["workers"] = json!(workers);
                all["unhandled"] = json!(unhandled);
                all["gateways"] = json!(roster.members(Program::Gateway, now));
                all["bridges"] = json!(roster.members(Program::Bridge, now));
            }
            Err(failure) => all["fleet_problem"] = json!(failure.to_string()),
        }
        if !asked.is_empty() {
            all["asked"] = json!(asked);
        }
        output::json(&format!("{all:#}\n"))?;
    } else {
        let mut text = diagnose::text(&problems, now) + "\n";
        text += &view::table(&snapshot, &uncertain, &pauses, now);
        text += &match &poll {
            Ok(_) if alarm.is_some() => "\nworkers, gateways and bridges: unknown, because their heartbeats wait for the end of the alarm\n".to_owned(),
            Ok(roster) => format!("\n{}\n{}", workers::tables(roster, now), producers::tables(roster, now)),
            Err(failure) => format!("\nworkers cannot be shown: {failure}\n"),
        };
        if !asked.is_empty() {
            text += &admin_ports::table(&asked);
        }
        output::lines(&text)?;
    }
    let unanswered = asked.iter().any(|worker| worker.problem.is_some());
    Ok(match poll {
        Err(failure) => failure.exit,
        Ok(_) if unanswered || needs_attention(&problems) => Exit::Failed,
        Ok(_) => Exit::Done,
    })
}

/// Prints what is wrong if the queues could not be read, because the broker does not answer or refuses the user.
pub fn print_failure(
    operator: &Operator,
    objective: Duration,
    args: &StatusArgs,
    failure: &Failure,
) -> Result<(), Failure> {
    if !matches!(failure.exit, Exit::BrokerUnavailable | Exit::Denied) {
        return Ok(());
    }
    let (now, problem) = (epoch_ms(SystemTime::now()), failure.to_string());
    let problems = diagnose(&Facts {
        now,
        operator,
        queue_problem: Some(&problem),
        fleet_problem: Some(&problem),
        alarm: None,
        database_problem: None,
        snapshot: None,
        lanes: &BTreeMap::new(),
        roster: &Roster::new(now),
        objective,
        new_letters: None,
        differences: Ok(&[]),
        alarms_unseen: None,
        pauses: Ok(&PauseRecords::new()),
    });
    match args.json {
        true => {
            output::json(&format!("{:#}\n", json!({ "verdict": verdict(&problems), "problems": problems })))
        }
        false => output::lines(&diagnose::text(&problems, now)),
    }
}

/// Counts the unacknowledged messages of the lanes. Returns the lanes of which the count is not certain.
fn count_lanes(snapshot: &mut Snapshot, roster: &Roster, now: i64) -> Vec<String> {
    let lanes = snapshot.lanes.iter_mut().map(|lane| (lane.name.as_str(), &mut lane.queue));
    let quarantine = (Names::QUARANTINE, &mut snapshot.quarantine);
    let uncertain = lanes.chain([quarantine]).filter_map(|(name, queue)| {
        let certain = count_unacked(roster, name, queue, now);
        (!certain).then(|| name.to_owned())
    });
    uncertain.collect()
}
