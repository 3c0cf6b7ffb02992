//! The queues as text.

use std::fmt::Write;

use garenne_operator::{
    queues::{FigureSource, QueueStatus, Snapshot, Source},
    table::{duration, grouped, lay_out},
};

use crate::fleet::Pauses;

/// The snapshot as a table, followed by remarks. `uncertain` are the lanes of which the unacknowledged messages are what
/// workers reported last, `pauses` what workers have paused.
pub(super) fn table(snapshot: &Snapshot, uncertain: &[String], pauses: &Pauses, now: i64) -> String {
    let Snapshot { broker, version, vhost, prefix, .. } = snapshot;
    let mut text = format!("RabbitMQ {version} at {broker}, virtual host {vhost}, prefix {prefix}\n");
    let FigureSource { source, age_ms } = snapshot.origin(now);
    let counted = match source {
        Source::Management => format!("from the management API, up to {} old", duration(age_ms)),
        Source::Amqp | Source::Heartbeats => format!("counted by the broker {} ago", duration(age_ms)),
    };
    let _ = writeln!(text, "ready, consumers and retrying: {counted}\n");
    let columns = ["queue", ">ready", ">unacked", "unacked from", ">consumers", ">retrying"];
    let row = |name: String, queue: &QueueStatus, is_missing: bool, retrying: Option<u64>| {
        vec![
            name,
            if is_missing { "missing".to_owned() } else { grouped(queue.ready) },
            queue.unacked.map_or("-".to_owned(), grouped),
            queue.unacked_from.map_or("-".to_owned(), origin),
            grouped(queue.consumers),
            retrying.map_or(String::new(), grouped),
        ]
    };
    let lanes = snapshot.lanes.iter().map(|lane| {
        let paused = if pauses.lanes.contains_key(&lane.name) { ", paused" } else { "" };
        row(format!("lane {}{paused}", lane.name), &lane.queue, !lane.missing.is_empty(), Some(lane.retrying))
    });
    let rest = [
        ("quarantine", &snapshot.quarantine),
        ("dead", &snapshot.dead),
        ("unroutable", &snapshot.unroutable),
    ];
    let is_missing = |name: &str| snapshot.missing.contains(&format!("{prefix}.{name}"));
    let rest = rest.map(|(name, queue)| row(name.to_owned(), queue, is_missing(name), None));
    text += &lay_out(&columns, lanes.chain(rest));
    for line in remarks(snapshot, uncertain) {
        let _ = write!(text, "\n{line}");
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// The source and the age of a count.
fn origin(FigureSource { source, age_ms }: FigureSource) -> String {
    let age = duration(age_ms);
    match source {
        Source::Amqp => format!("broker, {age} ago"),
        Source::Heartbeats => format!("heartbeats, {age} ago"),
        Source::Management => format!("management, up to {age} old"),
    }
}

/// What the figures do not tell.
fn remarks(snapshot: &Snapshot, uncertain: &[String]) -> Vec<String> {
    let mut lines = Vec::new();
    for lane in snapshot.lanes.iter().filter(|lane| lane.retrying > 0) {
        let rungs: Vec<_> =
            lane.rungs.iter().map(|(delay, n)| format!("{} in {delay}", grouped(*n))).collect();
        lines.push(format!("lane {}: retrying {}", lane.name, rungs.join(", ")));
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
            unacked_from: Some(FigureSource { source, age_ms }),
            consumers: 3,
            ..QueueStatus::default()
        };
        let fast = LaneStatus {
            name: "fast".into(),
            queue: queue(150, Source::Heartbeats, 74),
            shards: [].into(),
            leftovers: [].into(),
            missing: Vec::new(),
            retrying: 0,
            rungs: [].into(),
        };
        let dead = queue(7, Source::Management, 5_012);
        let snapshot = Snapshot { lanes: vec![fast], dead, ..empty() };
        let text = table(&snapshot, &["fast".to_owned()], &Pauses::default(), 1_012);
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
        let text = table(&snapshot, &[], &Pauses::default(), 6_012);
        let counted = "ready, consumers and retrying: from the management API, up to 5.0s old\n";
        assert!(text.contains(counted), "{text}");
    }
}
