//! The demo's messages, for users who see Garenne for the first time.

use std::{path::Path, time::Duration};

use garenne_common::shutdown::Receipt;
use garenne_operator::operator::Operator;

use super::{gateway::Gateway, mqtt::Mqtt, recording::Recording};
use crate::{fault::Fault, fleet::WorkerFleet};

/// Addresses and files to look at while the demo runs.
pub(super) fn places(
    gateway: &Gateway,
    mqtt: Option<&Mqtt>,
    fleet: &WorkerFleet,
    operator: &Operator,
    dir: &Path,
) -> String {
    let Gateway { url, admin, .. } = gateway;
    let mut text = format!(
        "\nLook around while it runs:\n  gateway   {url}/openapi.json  {admin}/metrics  {admin}/readyz\n            \
         (post your own readings to {url}/v1/readings)\n"
    );
    for worker in fleet.workers() {
        let Some(admin) = &worker.admin else { continue };
        let name = worker.process.name();
        text += &format!("  {name:<9} {admin}/metrics  {admin}/readyz  {admin}/pool\n");
    }
    if let Some(broker) = operator.management.as_ref().map(|client| client.address()) {
        text += &format!(
            "  broker    {broker}/  (user and password as in --management-url; guest, guest on a fresh one)\n"
        );
    }
    text += &format!("  files     {}\n", dir.display());
    if let Some(Mqtt { url, admin, .. }) = mqtt {
        let port = url.rsplit(':').next().unwrap_or_default();
        text += &format!(
            "The readings are messages of Zigbee2MQTT:\n  mosquitto {url}  (mosquitto_sub -p {port} -t 'zigbee2mqtt/#' -v)\n  \
             bridge    {admin}/metrics  {admin}/readyz\n"
        );
    }
    text
}

pub(super) fn beginning(recording: &Recording, speed: f64, lasts: Option<Duration>) -> String {
    let pace = match recording {
        Recording::Movable(recording) => {
            let hours = recording.span.as_secs_f64() / 3600.0;
            let pass = recording.span.as_secs_f64() / speed;
            let rate = recording.readings as f64 / pass.max(1e-3);
            let readings = recording.readings;
            format!(
                "Replaying {hours:.1} hours with {readings} readings in {pass:.0} s, repeatedly: about {rate:.0} readings per \
                 second, each with its own time."
            )
        }
        Recording::AsIs(path) => format!(
            "Replaying {} once and unchanged: it has no column `time` in RFC 3339, so it cannot be repeated.",
            path.display()
        ),
    };
    let end = match lasts {
        Some(span) => format!("It ends after {} s with an account of every reading.", span.as_secs()),
        None => {
            "It runs until you press Ctrl-C and then accounts for every reading. (--for 30s ends by itself.)"
                .to_owned()
        }
    };
    format!("\n{pace}\n{end}\n")
}

/// What a fault means. `target` is the worker that it stops.
pub(super) fn fault(fault: Fault, target: &str, replacement: &str) -> String {
    match fault {
        Fault::Kill => format!(
            "\n>> {target} gets SIGKILL, as when a machine fails: it finishes nothing.\n   RabbitMQ notices \
             and redelivers its tasks to the others: some of them may run twice, but are stored once. {replacement} starts."
        ),
        Fault::Bridge => "\n>> The MQTT bridge gets SIGKILL. Mosquitto keeps the messages that it has not acknowledged, and \
                          sends them again to the next one.\n   Their readings have a time, so that a repeat is stored once."
            .to_owned(),
        Fault::Mosquitto => "\n>> Mosquitto gets SIGKILL and starts again with the session that it has on its disk. Devices \
                             send again what it has not acknowledged."
            .to_owned(),
        Fault::BrokerRestart => "\n>> RabbitMQ is killed and starts again. Meanwhile the bridge acknowledges nothing, and \
                                 Mosquitto keeps the messages."
            .to_owned(),
        _ => format!(
            "\n>> {target} gets SIGTERM, as in a deployment: it takes no more tasks, finishes those it is running and \
             requeues the rest.\n   {replacement} starts in its place; the others continue."
        ),
    }
}

/// The receipt of a worker that was stopped.
pub(super) fn stopped(name: &str, receipt: &Receipt, took: Duration) -> String {
    let others = [
        (receipt.retried, "to be retried"),
        (receipt.dead, "dead"),
        (receipt.quarantined, "quarantined"),
        (receipt.lost_settlements, "settlements lost"),
        (receipt.abandoned, "abandoned"),
    ];
    let others = others.iter().filter(|(count, _)| *count > 0);
    let others: String = others.map(|(count, what)| format!(" + {count} {what}")).collect();
    format!(
        "   {name} stopped after {:.1} s. Its receipt: {} delivered = {} done + {} requeued{others}.",
        took.as_secs_f64(),
        receipt.delivered,
        receipt.acked,
        receipt.requeued
    )
}

pub(super) fn burst(readings: u64) -> String {
    format!("\n>> A burst of {readings} readings at full speed, so that every worker has queued tasks.")
}
