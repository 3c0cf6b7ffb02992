//! The queues as text.

use std::fmt::Write;

use crate::{
    queues::{QueueStatus, Snapshot, Source},
    table::{grouped, lay_out},
};

/// The snapshot as a table, followed by remarks.
pub(super) fn table(snapshot: &Snapshot) -> String {
    let Snapshot { broker, version, vhost, prefix, .. } = snapshot;
    let mut text = format!("RabbitMQ {version} at {broker}, virtual host {vhost}, prefix {prefix}\n\n");
    let columns = ["queue", ">ready", ">unacked", ">consumers", ">retrying"];
    let row = |name: String, queue: &QueueStatus, retrying: Option<u64>| {
        vec![
            name,
            grouped(queue.ready),
            queue.unacked.map_or("-".to_owned(), grouped),
            grouped(queue.consumers),
            retrying.map_or(String::new(), grouped),
        ]
    };
    let lanes = snapshot
        .lanes
        .iter()
        .map(|lane| row(format!("lane {}", lane.name), &lane.queue, Some(lane.retrying)));
    let rest = [
        ("quarantine", &snapshot.quarantine),
        ("dead", &snapshot.dead),
        ("unroutable", &snapshot.unroutable),
    ];
    let rest = rest.map(|(name, queue)| row(name.to_owned(), queue, None));
    text += &lay_out(&columns, lanes.chain(rest));
    for line in remarks(snapshot) {
        let _ = write!(text, "\n{line}");
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// What needs attention, most urgent first.
fn remarks(snapshot: &Snapshot) -> Vec<String> {
    let mut lines = Vec::new();
    if !snapshot.missing.is_empty() {
        lines.push(format!("missing: {} - run `garenne topology apply`", snapshot.missing.join(", ")));
    }
    for lane in &snapshot.lanes {
        let unconsumed =
            |ready: u64| format!("{} tasks are waiting and no worker consumes them", grouped(ready));
        if lane.shards.is_empty() && lane.queue.ready > 0 && lane.queue.consumers == 0 {
            lines.push(format!("lane {}: {}", lane.name, unconsumed(lane.queue.ready)));
        }
        for (name, queue) in &lane.shards {
            if queue.ready > 0 && queue.consumers == 0 {
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
            "{} unroutable messages: no binding matches them",
            grouped(snapshot.unroutable.ready)
        ));
    }
    if snapshot.source == Source::Amqp {
        lines.push("unacked is shown with --management-url only".to_owned());
    }
    lines
}
