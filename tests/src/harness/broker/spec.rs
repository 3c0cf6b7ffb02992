//! The configuration of a broker's node.

use super::{BrokerOptions, USER};
use crate::harness::{
    engine,
    node::{NodeFile, NodeSpec},
};

/// The plugins that Garenne can use.
const PLUGINS: &str = include_str!("../../../../deploy/rabbitmq/enabled_plugins");

/// The node of a broker with these options, on these ports.
pub(super) async fn spec(options: &BrokerOptions, amqp_port: u16, management_port: u16) -> NodeSpec {
    let mut conf = vec![
        // The management API's statistics are at most half a second old; the default is five seconds.
        "collect_statistics_interval = 500".to_owned(),
    ];
    conf.extend(options.conf.iter().cloned());
    // Quorum queues have a separate interval for their statistics.
    let mut parameters = vec!["{quorum_tick_interval, 500}".to_owned()];
    parameters.extend(options.parameters.iter().cloned());
    NodeSpec {
        service: "rabbitmq",
        image: engine::rabbitmq_image().await,
        ready: "Server startup complete",
        environment: vec![
            ("RABBITMQ_DEFAULT_USER", USER.to_owned()),
            ("RABBITMQ_DEFAULT_PASS", USER.to_owned()),
            // Idle schedulers must not spin, because the tests need the machine's cores.
            ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "+sbwt none +sbwtdcpu none +sbwtdio none".to_owned()),
        ],
        files: vec![
            NodeFile {
                in_container: "/etc/rabbitmq/conf.d/90-test.conf",
                in_folder: Some("extra.conf"),
                content: conf.join("\n") + "\n",
            },
            NodeFile {
                in_container: "/etc/rabbitmq/advanced.config",
                in_folder: Some("advanced.config"),
                content: format!("[{{rabbit, [{}]}}].\n", parameters.join(", ")),
            },
            NodeFile {
                in_container: "/etc/rabbitmq/enabled_plugins",
                in_folder: None,
                content: plugins(options),
            },
        ],
        ports: vec![(amqp_port, 5672), (management_port, 15672)],
        member: None,
    }
}

/// The file of enabled plugins.
fn plugins(options: &BrokerOptions) -> String {
    let enabled = match options.without_plugin {
        Some(plugin) => PLUGINS.replace(&format!("{plugin},"), ""),
        None => PLUGINS.to_owned(),
    };
    if options.mqtt { enabled.replace("].", ",rabbitmq_mqtt].") } else { enabled }
}
