//! The queues as text.

use std::fmt::Write;

use garenne_operator::{
    queues::{Origin, QueueStatus, Snapshot, Source},
    table::{duration, grouped, lay_out},
};
use garenne_protocol::heartbeat::UnhandledBeat;

use crate::fleet::Pauses;

/// The snapshot as a table, followed by remarks. `uncertain` are the lanes of which the unacknowledged messages are what
/// workers reported last, `pauses` what workers have paused, `unhandled` the kinds that no running worker has.
pub(super) fn table(
    snapshot: &Snapshot,
    uncertain: &[String],
    pauses: &Pauses,
    unhandled: &[UnhandledBeat],
    now: i64,
) -> String {
    let Snapshot { broker, version, vhost, prefix, .. } = snapshot;
    let mut text = format!("RabbitMQ {version} at {broker}, virtual host {vhost}, prefix {prefix}\n");
    let Origin { source, age_ms } = snapshot.origin(now);
    let counted = match source {
        Source::Management => format!("from the management API, up to {} old", duration(age_ms)),
        Source::Amqp | Source::Heartbeats => format!("counted by the broker {} ago", duration(age_ms)),
    };
    let _ = writeln!(text, "ready, consumers and retrying: {counted}\n");
    let columns = ["queue", ">ready", ">unacked", "unacked from", ">consumers", ">retrying"];
    let row = |name: String, queue: &QueueStatus, retrying: Option<u64>| {
        vec![
            name,
            grouped(queue.ready),
            queue.unacked.map_or("-".to_owned(), grouped),
            queue.unacked_from.map_or("-".to_owned(), origin),
            grouped(queue.consumers),
            retrying.map_or(String::new(), grouped),
        ]
    };
    let lanes = snapshot.lanes.iter().map(|lane| {
        let paused = if pauses.lanes.contains_key(&lane.name) { ", paused" } else { "" };
        row(format!("lane {}{paused}", lane.name), &lane.queue, Some(lane.retrying))
    });
    let rest = [
        ("quarantine", &snapshot.quarantine),
        ("dead", &snapshot.dead),
        ("unroutable", &snapshot.unroutable),
    ];
    let rest = rest.map(|(name, queue)| row(name.to_owned(), queue, None));
    text += &lay_out(&columns, lanes.chain(rest));
    let waiting = unhandled.iter().map(|kind| unhandled_remark(kind, now));
    for line in waiting.chain(remarks(snapshot, uncertain, pauses)) {
        let _ = write!(text, "\n{line}");
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// The source and the age of a count.
fn origin(Origin { source, age_ms }: Origin) -> String {
    let age = duration(age_ms);
    match source {
        Source::Amqp => format!("broker, {age} ago"),
        Source::Heartbeats => format!("heartbeats, {age} ago"),
        Source::Management => format!("management, up to {age} old"),
    }
}

/// A kind whose tasks become dead letters unless a worker with its handler starts.
fn unhandled_remark(UnhandledBeat { lane, kind, tasks, since, .. }: &UnhandledBeat, now: i64) -> String {
    let (tasks, waited) = (grouped(*tasks), duration(u64::try_from(now.saturating_sub(*since)).unwrap_or(0)));
    format!(
        "lane {lane}: {tasks} tasks of kind {kind:?} have been waiting for up to {waited}, and no running worker has a \
         handler for it"
    )
}

/// The states that need attention, most urgent first.
fn remarks(snapshot: &Snapshot, uncertain: &[String], pauses: &Pauses) -> Vec<String> {
    let mut lines = Vec::new();
    if !snapshot.missing.is_empty() {
        lines.push(format!("missing: {} - run `garenne topology apply`", snapshot.missing.join(", ")));
    }
    for lane in &snapshot.lanes {
        let unconsumed =
            |ready: u64| format!("{} tasks are waiting and no worker consumes them", grouped(ready));
        let is_unconsumed = |queue: &QueueStatus| {
            queue.ready > 0 && queue.consumers == 0 && !pauses.lanes.contains_key(&lane.name)
        };
        if lane.shards.is_empty() && is_unconsumed(&lane.queue) {
            lines.push(format!("lane {}: {}", lane.name, unconsumed(lane.queue.ready)));
        }
        for (name, queue) in &lane.shards {
            if is_unconsumed(queue) {
                lines.push(format!("{name}: {}", unconsumed(queue.ready)));
            }
        }
        for (name, ready) in &lane.leftovers {
            lines.push(format!("{name}: {}; its lane has fewer shards now", unconsumed(*ready)));
        }
        if lane.retrying > 0 {
            let rungs: Vec<_> =
                lane.rungs.iter().map(|(delay, n)| format!("{} in {delay}", grouped(*n))).collect();
            lines.push(format!("lane {}: retrying {}", lane.name, rungs.join(", ")));
        }
    }
    if snapshot.dead.ready > 0 {
        lines.push(format!(
            "{} dead letters - `garenne dead list` shows the reasons",
            grouped(snapshot.dead.ready)
        ));
    }
    if snapshot.unroutable.ready > 0 {
        lines.push(format!(
            "{} unroutable messages: no binding matches them - `garenne unroutable list` shows them",
            grouped(snapshot.unroutable.ready)
        ));
    }
    if !uncertain.is_empty() {
        lines.push(format!(
            "unacked of {} is what workers reported last: a worker is silent, or another program consumes; \
             --management-url adds the broker's count",
            uncertain.join(", ")
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use garenne_operator::queues::LaneStatus;

    fn empty() -> Snapshot {
        Snapshot {
            broker: "b:5672".into(),
            vhost: "/".into(),
            version: "4.0.5".into(),
            prefix: "garenne".into(),
            source: Source::Amqp,
            read_at: 1_000,
            lanes: Vec::new(),
            quarantine: QueueStatus::default(),
            dead: QueueStatus::default(),
            unroutable: QueueStatus::default(),
            missing: Vec::new(),
            control_queues: None,
            queues: [].into(),
        }
    }

    #[test]
    fn each_count_has_its_source_and_age() {
        let queue = |unacked, source, age_ms| QueueStatus {
            ready: 1_271,
            unacked: Some(unacked),
            unacked_from: Some(Origin { source, age_ms }),
            consumers: 3,
            ..QueueStatus::default()
        };
        let fast = LaneStatus {
            name: "fast".into(),
            queue: queue(150, Source::Heartbeats, 74),
            shards: [].into(),
            leftovers: [].into(),
            retrying: 0,
            rungs: [].into(),
        };
        let dead = queue(7, Source::Management, 5_012);
        let snapshot = Snapshot { lanes: vec![fast], dead, ..empty() };
        let text = table(&snapshot, &["fast".to_owned()], &Pauses::default(), &[], 1_012);
        let lines: Vec<_> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(lines[1], "ready, consumers and retrying: counted by the broker 12ms ago");
        assert_eq!(lines[4], "lane fast 1,271 150 heartbeats, 74ms ago 3 0");
        assert_eq!(lines[5], "quarantine 0 - - 0");
        assert_eq!(lines[6], "dead 1,271 7 management, up to 5.0s old 3");
        assert!(text.contains("unacked of fast is what workers reported last"), "{text}");
    }

    #[test]
    fn counts_of_the_management_api_are_not_shown_as_fresh() {
        let snapshot = Snapshot { source: Source::Management, ..empty() };
        let text = table(&snapshot, &[], &Pauses::default(), &[], 6_012);
        let counted = "ready, consumers and retrying: from the management API, up to 5.0s old\n";
        assert!(text.contains(counted), "{text}");
    }

    #[test]
    fn a_paused_lane_is_not_missing_its_workers() {
        let lane = |name: &str| LaneStatus {
            name: name.into(),
            queue: QueueStatus { ready: 5, ..QueueStatus::default() },
            shards: [].into(),
            leftovers: [].into(),
            retrying: 0,
            rungs: [].into(),
        };
        let snapshot = Snapshot { lanes: vec![lane("fast"), lane("slow")], ..empty() };
        let pauses = Pauses { lanes: [("slow".to_owned(), 2)].into(), ..Pauses::default() };
        let text = table(&snapshot, &[], &pauses, &[], 1_012);
        assert!(text.contains("lane slow, paused"), "{text}");
        assert!(text.contains("lane fast: 5 tasks are waiting and no worker consumes them"), "{text}");
        assert!(!text.contains("lane slow: "), "{text}");
    }

    #[test]
    fn a_kind_without_a_running_worker_is_named() {
        let (lane, kind) = ("default".into(), "email.send".into());
        let kind = UnhandledBeat { lane, kind, tasks: 1_200, since: 1_000, waiting: Vec::new() };
        let text = table(&empty(), &[], &Pauses::default(), &[kind], 36_000);
        let expected = "\nlane default: 1,200 tasks of kind \"email.send\" have been waiting for up to 35s, and no \
                        running worker has a handler for it\n";
        assert!(text.contains(expected), "{text}");
    }
}
