//! The demo's messages, for users who see Garenne for the first time.

use std::{path::Path, time::Duration};

use garenne_chaos::WorkerProcess;
use garenne_common::shutdown::Receipt;
use garenne_management::ManagementClient;

/// Addresses and files to look at while the demo runs.
pub(super) fn places(
    (gateway, gateway_admin): (&str, &str),
    workers: &[WorkerProcess],
    broker: Option<&ManagementClient>,
    dir: &Path,
) -> String {
    let mut text = format!(
        "\nLook around while it runs:\n  gateway   {gateway}/openapi.json  {gateway_admin}/metrics  {gateway_admin}/readyz\n            \
         (post your own readings to {gateway}/v1/readings)\n"
    );
    for (name, admin) in workers.iter().filter_map(|worker| Some((worker.name(), worker.admin.as_ref()?))) {
        text += &format!("  {name:<9} {admin}/metrics  {admin}/readyz  {admin}/pool\n");
    }
    if let Some(broker) = broker.map(ManagementClient::address) {
        text += &format!(
            "  broker    {broker}/  (user and password as in --management-url; guest, guest on a fresh one)\n"
        );
    }
    text += &format!("  files     {}\n", dir.display());
    text
}

pub(super) fn beginning(pace: &str, ends: Option<Duration>) -> String {
    let end = match ends {
        Some(span) => format!("It ends after {} s with an audit of every reading.", span.as_secs()),
        None => "It runs until you press Ctrl-C and then audits every reading. \
                 (--for 30s ends by itself.)"
            .to_owned(),
    };
    format!("{pace}\n{end}\n")
}

pub(super) fn soft_stop(name: &str, replacement: &str) -> String {
    format!(
        "\n>> {name} gets SIGTERM, as in a deployment: it takes no more tasks, finishes those it is running and \
         requeues the rest.\n   {replacement} starts in its place; the others continue."
    )
}

pub(super) fn stopped(name: &str, receipt: &Receipt, took: Duration) -> String {
    format!(
        "   {name} stopped after {:.1} s. Its receipt: {} delivered = {} done + {} requeued{}.",
        took.as_secs_f64(),
        receipt.delivered,
        receipt.acked,
        receipt.requeued,
        others(receipt)
    )
}

fn others(receipt: &Receipt) -> String {
    let counts = [
        (receipt.retried, "to be retried"),
        (receipt.dead, "dead"),
        (receipt.quarantined, "quarantined"),
        (receipt.lost_settlements, "settlements lost"),
        (receipt.abandoned, "abandoned"),
    ];
    counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!(" + {count} {what}")).collect()
}

pub(super) fn kill(name: &str, replacement: &str) -> String {
    format!(
        "\n>> {name} gets SIGKILL, as when a machine fails: it finishes nothing.\n   RabbitMQ notices \
         and redelivers its tasks to the others: some of them may run twice, but are stored once. {replacement} starts."
    )
}

/// Addresses of the MQTT broker and the bridge.
pub(super) fn mqtt_places(url: &str, admin: &str) -> String {
    let port = url.rsplit(':').next().unwrap_or_default();
    format!(
        "The readings are messages of Zigbee2MQTT:\n  mosquitto {url}  (mosquitto_sub -p {port} -t 'zigbee2mqtt/#' -v)\n  \
         bridge    {admin}/metrics  {admin}/readyz\n"
    )
}

pub(super) fn kill_bridge() -> &'static str {
    "\n>> The MQTT bridge gets SIGKILL. Mosquitto keeps the messages that it has not acknowledged, and sends them again \
     to the next one.\n   Their readings have a time, so that a repeat is stored once."
}

pub(super) fn kill_mosquitto() -> &'static str {
    "\n>> Mosquitto gets SIGKILL and starts again with the session that it has on its disk. Devices send again what it \
     has not acknowledged."
}

pub(super) fn kill_broker() -> &'static str {
    "\n>> RabbitMQ is killed and starts again. Meanwhile the bridge acknowledges nothing, and Mosquitto keeps the messages."
}

pub(super) fn burst(readings: u64) -> String {
    format!("\n>> A burst of {readings} readings at full speed, so that every worker has queued tasks.")
}

pub(super) fn crashed(name: &str, last: &str, replacement: &str) -> String {
    format!("\n!! {name} crashed: {last}\n   {replacement} starts in its place.")
}
