//! An additional listener with TLS.

use crate::harness::node::{NodeFile, NodeSpec};

/// A broker's certificates, as PEM. The listener requires client certificates that the authority signed.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The certificate of the authority of both sides.
    pub ca: String,
    /// The broker's certificate, for 127.0.0.1.
    pub cert: String,
    /// Its key.
    pub key: String,
}

/// Adds a listener for `amqps`.
pub(super) fn secure(spec: &mut NodeSpec, tls: &Tls, port: u16) {
    spec.ports.push((port, 5671));
    let lines = [
        "listeners.ssl.default = 5671",
        "ssl_options.cacertfile = /etc/rabbitmq/ca.pem",
        "ssl_options.certfile = /etc/rabbitmq/cert.pem",
        "ssl_options.keyfile = /etc/rabbitmq/key.pem",
        "ssl_options.verify = verify_peer",
        "ssl_options.fail_if_no_peer_cert = true\n",
    ];
    let files = [
        ("/etc/rabbitmq/conf.d/91-tls.conf", lines.join("\n")),
        ("/etc/rabbitmq/ca.pem", tls.ca.clone()),
        ("/etc/rabbitmq/cert.pem", tls.cert.clone()),
        ("/etc/rabbitmq/key.pem", tls.key.clone()),
    ];
    let file = |(in_container, content)| NodeFile { in_container, in_folder: None, content };
    spec.files.extend(files.map(file));
}
