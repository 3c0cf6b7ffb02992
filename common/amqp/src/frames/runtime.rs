//! lapin's runtime with the filter as its stream.

use std::{
    io::{self, Read, Write},
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use async_rs::{Runtime, Tokio, traits::Reactor, util::RuntimeParts};
use futures_io::{AsyncRead, AsyncWrite};
use futures_util::{Stream, TryFutureExt};
use garenne_protocol::topology::BrokerVersion;
use lapin::{AsyncTcpStream, Connection, ConnectionProperties, uri::AMQPUri};
use tokio::net::TcpStream;

use super::{filter::FrameFilter, stream::FrameStream};
use crate::transport::{self, Tls, Transport};

/// Tokio's reactor with filtered TCP streams.
#[derive(Clone, Debug)]
struct FilteringReactor(Tokio);

/// The filter reads what TLS has decrypted.
type Filtered = FrameStream<Box<dyn Transport>>;

/// Connects as lapin does, with a filter between its parser and the stream. With an `amqps` URI, TLS lies below the
/// filter; to lapin the stream is a plain one. `version` is set when the broker's `connection.start` has passed.
pub(crate) async fn connect(
    uri: AMQPUri,
    properties: ConnectionProperties,
    tls: Tls,
    version: Arc<OnceLock<BrokerVersion>>,
) -> lapin::Result<Connection> {
    let tokio = Tokio::current();
    let open = async move |uri: AMQPUri, _: Runtime<RuntimeParts<Tokio, FilteringReactor>>| {
        let stream = transport::connect(&uri, &tls).await?;
        let filter = FrameFilter::new(uri.query.frame_max.unwrap_or(0), Arc::clone(&version));
        Ok(AsyncTcpStream::Plain(FrameStream::new(stream, filter)))
    };
    let filtering = RuntimeParts::new(tokio.clone(), FilteringReactor(tokio));
    Connection::connector(uri, Runtime::new(filtering), open, properties).await
}

impl Reactor for FilteringReactor {
    type TcpStream = Filtered;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: Read + Write + AsFd + AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        self.0.register(socket)
    }

    fn sleep(&self, dur: Duration) -> Self::Sleep {
        self.0.sleep(dur)
    }

    fn interval(&self, dur: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.0.interval(dur)
    }

    fn tcp_connect_addr(
        &self,
        addr: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        let filter = FrameFilter::new(0, Arc::default());
        TcpStream::connect(addr).map_ok(|stream| FrameStream::new(Box::new(stream) as _, filter))
    }
}
