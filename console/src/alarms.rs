//! `garenne alarms`: lists alarms, and what people do with them.

mod cli;
mod query;
mod store;

use std::env;

use garenne_common::exit::{Exit, Failure};
use garenne_operator::{
    operator::Operator,
    output,
    table::{duration, lay_out},
};
use serde_json::{Value, json};
use time::OffsetDateTime;

pub use cli::AlarmsArgs;
use cli::{AddArgs, AlarmsVerb, ChangeArgs, ListArgs, MaintenanceVerb};
pub(crate) use query::{AlarmFilter, AlarmView, DeviceFilter, alarms};
use store::shown;
pub(crate) use store::{AlarmAction, AlarmStore};

use crate::audit_log::{audited, command_line};

/// Runs `garenne alarms …`.
pub async fn run(operator: &Operator, args: &AlarmsArgs) -> Result<Exit, Failure> {
    let (pool, tables) = operator.tables().await?;
    let store = AlarmStore::new(pool, tables);
    match &args.verb {
        AlarmsVerb::List(list) => print_alarms(&store, list).await?,
        AlarmsVerb::Ack(change) => {
            changed(operator, &store, change, AlarmAction::Acknowledge).await?;
            output::note(format_args!("{} is acknowledged: no more reminders", change.id));
        }
        AlarmsVerb::Snooze { change, time } => {
            changed(operator, &store, change, AlarmAction::Snooze(*time)).await?;
            let time = humantime::format_duration(*time);
            output::note(format_args!("{} is snoozed for {time}", change.id));
        }
        AlarmsVerb::Unsnooze(change) => {
            changed(operator, &store, change, AlarmAction::Unsnooze).await?;
            output::note(format_args!("{} is snoozed no more", change.id));
        }
        AlarmsVerb::Maintenance(verb) => maintenance(operator, &store, verb).await?,
    }
    Ok(Exit::Done)
}

/// Changes an alarm, and leaves the records of it.
async fn changed(
    operator: &Operator,
    store: &AlarmStore,
    change: &ChangeArgs,
    action: AlarmAction,
) -> Result<(), Failure> {
    let (command, time) = match action {
        AlarmAction::Acknowledge => ("alarm.ack", None),
        AlarmAction::Snooze(time) => ("alarm.snooze", Some(humantime::format_duration(time).to_string())),
        AlarmAction::Unsnooze => ("alarm.unsnooze", None),
    };
    let by = change.by();
    let arguments = json!({ "alarm": change.id, "for": time, "by": by });
    let changing = store.change(&change.id, action, &by);
    audited(operator, command_line(), command, arguments, changing, |_| Value::Null).await.map(drop)
}

impl ChangeArgs {
    fn by(&self) -> String {
        by(self.by.as_deref())
    }
}

/// The person who does something: as given, or the user's name.
fn by(given: Option<&str>) -> String {
    let user = || env::var("USER").or_else(|_| env::var("LOGNAME")).ok().filter(|name| !name.is_empty());
    given.map(str::to_owned).or_else(user).unwrap_or_else(|| "operator".to_owned())
}

async fn print_alarms(store: &AlarmStore, args: &ListArgs) -> Result<(), Failure> {
    let filter = AlarmFilter {
        open: args.open,
        device: args.device.clone().map_or(DeviceFilter::All, DeviceFilter::Matching),
        severities: args.severity.iter().map(Into::into).collect(),
        limit: args.limit.into(),
    };
    let alarms = store.list(&filter).await?;
    if args.json {
        return output::json_lines(&alarms);
    }
    if alarms.is_empty() {
        output::note("no alarms");
        return Ok(());
    }
    let now = OffsetDateTime::now_utc();
    let headings = ["severity", "device", "metric", "rule", ">value", "since", ">age", "state", "id"];
    output::lines(&lay_out(&headings, alarms.iter().map(|alarm| row(alarm, now))))?;
    if alarms.len() == args.limit as usize {
        output::note(format_args!("there may be more than {} alarms; --limit lists more", args.limit));
    }
    Ok(())
}

fn row(alarm: &AlarmView, now: OffsetDateTime) -> [String; 9] {
    let unit = alarm.unit.as_deref().map(|unit| format!(" {unit}")).unwrap_or_default();
    let age = u64::try_from((now - alarm.since).whole_milliseconds()).unwrap_or_default();
    [
        alarm.severity.clone(),
        alarm.device.clone(),
        alarm.metric.clone(),
        alarm.rule.clone(),
        alarm.value.map_or_else(|| "–".to_owned(), |value| format!("{value}{unit}")),
        shown(alarm.since),
        duration(age),
        state(alarm),
        alarm.id.clone(),
    ]
}

/// The state of an alarm, in words.
fn state(alarm: &AlarmView) -> String {
    let mut words = match (&alarm.closed_reason, alarm.ended) {
        (Some(reason), _) => vec![format!("closed ({reason})")],
        (None, Some(ended)) => vec![format!("over since {}", shown(ended))],
        (None, None) => vec![if alarm.missing { "never sent" } else { "open" }.to_owned()],
    };
    if let Some(by) = &alarm.acked_by {
        words.push(format!("acknowledged by {by}"));
    }
    if let Some(until) = alarm.snoozed_until.filter(|_| alarm.ended.is_none()) {
        words.push(format!("snoozed until {}", shown(until)));
    }
    if alarm.in_maintenance {
        words.push("in maintenance".to_owned());
    }
    words.join(", ")
}

async fn maintenance(operator: &Operator, store: &AlarmStore, verb: &MaintenanceVerb) -> Result<(), Failure> {
    match verb {
        MaintenanceVerb::Add(AddArgs { device, from, to, time, reason, by: given }) => {
            let end = to.map_or_else(|| Err(time.unwrap_or_default()), |to| Ok(to.into()));
            let starts = from.map(Into::into);
            let by = by(given.as_deref());
            let arguments = json!({ "device": device.as_str(), "reason": reason, "by": by });
            let adding = store.add_maintenance(device, starts, end, reason, &by);
            let result = |id: &String| json!({ "window": id });
            let id = audited(operator, command_line(), "maintenance.add", arguments, adding, result).await?;
            output::lines(&format!("{id}\n"))
        }
        MaintenanceVerb::List { all, json } => {
            let windows = store.maintenance(*all).await?;
            if *json {
                return output::json_lines(&windows);
            }
            if windows.is_empty() {
                output::note("no maintenance windows");
                return Ok(());
            }
            let rows = windows.iter().map(|window| {
                [
                    window.device.clone(),
                    shown(window.starts),
                    shown(window.ends),
                    window.reason.clone(),
                    window.created_by.clone(),
                    window.ended_by.clone().unwrap_or_default(),
                    window.id.clone(),
                ]
            });
            output::lines(&lay_out(&["device", "from", "to", "reason", "by", "ended by", "id"], rows))
        }
        MaintenanceVerb::End(change) => {
            let by = change.by();
            let arguments = json!({ "window": change.id, "by": by });
            let ending = store.end_maintenance(&change.id, &by);
            audited(operator, command_line(), "maintenance.end", arguments, ending, |_| Value::Null).await?;
            output::note(format_args!("{} has ended", change.id));
            Ok(())
        }
    }
}
