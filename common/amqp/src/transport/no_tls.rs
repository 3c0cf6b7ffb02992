//! A build without TLS. It refuses a URI with `amqps` before it connects.

use std::io;

use garenne_common::certificates::Certificates;
use lapin::uri::AMQPUri;
use tokio::net::TcpStream;

use super::Transport;
use crate::error::BrokerError;

/// Nothing.
pub(crate) struct Tls;

impl Tls {
    #[expect(clippy::unnecessary_wraps, reason = "with TLS the files may be unusable")]
    pub(crate) fn read(_: &AMQPUri, _: &Certificates) -> Result<Self, BrokerError> {
        Ok(Self)
    }

    pub(super) async fn open(&self, _: &str, stream: TcpStream) -> io::Result<Box<dyn Transport>> {
        Ok(Box::new(stream))
    }
}
