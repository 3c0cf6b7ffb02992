//! One POST: resolve, check every address, connect to one of the checked ones, send, read the answer.
//!
//! Own code around hyper's client connection, because what is checked must be what is connected to: a
//! client with a resolver, proxies and redirects of its own asks again, and may be told otherwise.

use std::{io, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, Response, body::Incoming, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, lookup_host},
};
use tokio_rustls::TlsConnector;
use url::{Host, Url};

use super::address::is_allowed;

/// The largest head of an answer, and how many headers are in it at most.
const LARGEST_HEAD: usize = 16 * 1024;
const MOST_HEADERS: usize = 64;
/// How much of an answer's body is read; who says more is hung up on.
const LARGEST_ANSWER: usize = 16 * 1024;

/// Makes requests.
pub(super) struct Post {
    networks: Vec<IpNet>,
    tls: TlsConnector,
}

/// What came back.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// `Retry-After` as it was written.
    pub(super) retry_after: Option<String>,
    /// The beginning of the body.
    pub(super) text: String,
}

/// Why nothing came back.
#[derive(Debug, thiserror::Error)]
pub(super) enum PostError {
    /// The host has an address that may not be asked.
    #[error(
        "{host} is {address}, not a public address; alert.allow_networks names the others that are allowed"
    )]
    Forbidden { host: String, address: std::net::IpAddr },
    /// Network, TLS or HTTP.
    #[error("{doing}: {error}")]
    Failed { doing: &'static str, error: String },
}

impl PostError {
    fn failed(doing: &'static str, error: impl std::error::Error) -> Self {
        let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
        Self::Failed { doing, error: format!("{error}{cause}") }
    }
}

impl Post {
    /// Trusts the system's certificate authorities.
    pub(super) fn new(networks: Vec<IpNet>) -> Self {
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        let (_, unusable) = roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            tracing::warn!(unusable, "no certificate authorities on this system: https webhooks will fail");
        }
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring knows them")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self { networks, tls: TlsConnector::from(Arc::new(config)) }
    }

    /// Sends it once. Gives no deadline: whoever calls drops it when time is up.
    pub(super) async fn send(
        &self,
        url: &Url,
        headers: header::HeaderMap,
        body: Bytes,
    ) -> Result<Answer, PostError> {
        let stream = self.connect(url).await?;
        if url.scheme() == "http" {
            return exchange(stream, url, headers, body).await;
        }
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host).map_err(|error| PostError::failed("TLS", error))?;
        let stream = self.tls.connect(name, stream).await.map_err(|error| PostError::failed("TLS", error))?;
        exchange(stream, url, headers, body).await
    }

    async fn connect(&self, url: &Url) -> Result<TcpStream, PostError> {
        let port = url.port_or_known_default().unwrap_or_default();
        let resolving = |error| PostError::failed("resolving", error);
        let addresses: Vec<SocketAddr> = match url.host() {
            Some(Host::Ipv4(address)) => vec![(address, port).into()],
            Some(Host::Ipv6(address)) => vec![(address, port).into()],
            Some(Host::Domain(name)) => lookup_host((name, port)).await.map_err(resolving)?.collect(),
            None => Vec::new(),
        };
        // One address that is not allowed spoils the name: half an attack is one.
        if let Some(forbidden) = addresses.iter().find(|address| !is_allowed(address.ip(), &self.networks)) {
            let host = url.host_str().unwrap_or_default().to_owned();
            return Err(PostError::Forbidden { host, address: forbidden.ip() });
        }
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in addresses {
            match TcpStream::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(PostError::failed("connecting", last))
    }
}

/// One request on a connection that is closed after it.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    url: &Url,
    mut headers: header::HeaderMap,
    body: Bytes,
) -> Result<Answer, PostError> {
    let failed = |error| PostError::failed("HTTP", error);
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(LARGEST_HEAD)
        .max_headers(MOST_HEADERS)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(failed)?;
    let authority = match url.port() {
        Some(port) => format!("{}:{port}", url.host_str().unwrap_or_default()),
        None => url.host_str().unwrap_or_default().to_owned(),
    };
    let value = |text: &str| header::HeaderValue::from_str(text).expect("a URL's host and our own name");
    headers.insert(header::HOST, value(&authority));
    headers.insert(header::CONNECTION, value("close"));
    headers.insert(header::USER_AGENT, value(concat!("garenne/", env!("CARGO_PKG_VERSION"))));
    headers.insert(header::CONTENT_TYPE, value("application/json"));
    let target = &url[url::Position::BeforePath..url::Position::AfterQuery];
    let mut request =
        Request::post(target).body(Full::new(body)).map_err(|error| PostError::failed("HTTP", error))?;
    *request.headers_mut() = headers;
    let answering = async {
        let answer = sender.send_request(request).await.map_err(failed)?;
        Ok(read(answer).await)
    };
    // Both in this future, so that nothing is left running when it is dropped.
    let mut connection = std::pin::pin!(connection);
    let mut answering = std::pin::pin!(answering);
    tokio::select! {
        answer = &mut answering => answer,
        ended = &mut connection => match answering.await {
            Ok(answer) => Ok(answer),
            Err(error) => Err(ended.err().map_or(error, failed)),
        },
    }
}

async fn read(answer: Response<Incoming>) -> Answer {
    let status = answer.status().as_u16();
    let retry_after = answer.headers().get(header::RETRY_AFTER);
    let retry_after = retry_after.and_then(|value| value.to_str().ok()).map(str::to_owned);
    // The status is the answer; a body that is too long or breaks off does not change it.
    let body = Limited::new(answer.into_body(), LARGEST_ANSWER).collect().await;
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    let text = String::from_utf8_lossy(&body);
    let text = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect::<String>();
    Answer { status, retry_after, text: text.trim().to_owned() }
}
