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
use lapin::{
    AsyncTcpStream, Connection, ConnectionProperties,
    tcp::{AMQPUriTcpExt, OwnedTLSConfig},
    uri::AMQPUri,
};

use super::{filter::FrameFilter, stream::FrameStream};

/// Tokio's reactor with filtered TCP streams.
#[derive(Clone, Debug)]
struct FilteringReactor(Tokio);

/// The filter reads what TLS has decrypted.
type Filtered = FrameStream<AsyncTcpStream<<Tokio as Reactor>::TcpStream>>;

/// Connects as lapin does, with a filter between its parser and the stream. With an `amqps` URI, TLS lies below the
/// filter. `version` is set when the broker's `connection.start` has passed.
///
/// # Errors
/// Those of lapin.
pub(crate) async fn connect(
    uri: AMQPUri,
    properties: ConnectionProperties,
    tls: OwnedTLSConfig,
    version: Arc<OnceLock<BrokerVersion>>,
) -> lapin::Result<Connection> {
    let tokio = Tokio::current();
    let below = Runtime::new(tokio.clone());
    let open = async move |uri: AMQPUri, _: Runtime<RuntimeParts<Tokio, FilteringReactor>>| {
        let stream = uri.connect_with_config_async(tls.as_ref(), &below).await?;
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
        self.0.tcp_connect_addr(addr).map_ok(|stream| FrameStream::new(AsyncTcpStream::Plain(stream), filter))
    }
}
