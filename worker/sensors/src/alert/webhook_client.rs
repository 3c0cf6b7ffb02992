//! Sends one POST request: resolves the host, checks all addresses, connects to a checked one, reads the response.
//!
//! Built on hyper's client connection, because the request must go to an address that was checked. A client
//! with its own resolver, proxies and redirects would resolve the name again and may get another address.

use std::{
    net::SocketAddr,
    sync::{Arc, LazyLock},
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, Response, body::Incoming, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, lookup_host},
};
use tokio_rustls::TlsConnector;

use super::{address::AllowedAddresses, delivery::DeliveryError, settings::WebhookUrl};

/// Limit for the head of a response, in bytes.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// Limit for the number of headers of a response.
const MAX_HEADERS: usize = 64;
/// Limit for the body of a response, in bytes. The connection is closed beyond it.
const MAX_BODY_BYTES: usize = 16 * 1024;
/// Limit for the part of the body that errors quote, in characters.
const MAX_QUOTED_CHARS: usize = 200;

/// Sends requests to allowed addresses.
pub(super) struct WebhookClient {
    tls: LazyLock<TlsConnector>,
}

#[derive(Debug)]
pub(super) struct WebhookResponse {
    pub(super) status: u16,
    pub(super) retry_after: Option<String>,
    /// The beginning of the body.
    pub(super) text: String,
}

impl WebhookClient {
    /// Trusts the system's certificate authorities. They are loaded by [`Self::load_authorities`], or by the first
    /// request over TLS.
    pub(super) fn new() -> Self {
        Self { tls: LazyLock::new(system_tls) }
    }

    /// Loads the certificate authorities, and warns if there are none. A worker that sends no webhooks does without
    /// their memory.
    pub(super) fn load_authorities(&self) {
        LazyLock::force(&self.tls);
    }

    /// Sends one request if all addresses of the host are `allowed`. Has no deadline; dropping the future closes the
    /// connection. Fails with [`DeliveryError::InvalidDestination`] or [`DeliveryError::Unreachable`].
    pub(super) async fn send(
        &self,
        url: &WebhookUrl,
        allowed: &AllowedAddresses,
        headers: header::HeaderMap,
        body: Bytes,
    ) -> Result<WebhookResponse, DeliveryError> {
        let stream = connect(url, allowed).await?;
        if url.url().scheme() == "http" {
            return exchange(stream, url, headers, body).await;
        }
        let name = ServerName::try_from(url.host().to_owned());
        let name = name.map_err(|error| DeliveryError::unreachable(url, "TLS", error))?;
        let stream = self.tls.connect(name, stream).await;
        let stream = stream.map_err(|error| DeliveryError::unreachable(url, "TLS", error))?;
        exchange(stream, url, headers, body).await
    }
}

fn system_tls() -> TlsConnector {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (_, unusable) = roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        tracing::warn!(unusable, "no certificate authorities found on this system, https webhooks will fail");
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring supports the default protocol versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsConnector::from(Arc::new(config))
}

async fn connect(url: &WebhookUrl, allowed: &AllowedAddresses) -> Result<TcpStream, DeliveryError> {
    let port = url.url().port_or_known_default().unwrap_or_default();
    let resolved = lookup_host((url.host(), port)).await;
    let resolved = resolved.map_err(|error| DeliveryError::unreachable(url, "resolving", error))?;
    let addresses: Vec<SocketAddr> = resolved.collect();
    // One forbidden address refuses the name: an attacker may mix it with public ones.
    if let Some(forbidden) = addresses.iter().find(|address| !allowed.contains(address.ip())) {
        return Err(DeliveryError::InvalidDestination(format!(
            "url: {} resolves to {}, which is not a public address; alert.payload_urls.networks allows others",
            url.host(),
            forbidden.ip()
        )));
    }
    let stream = TcpStream::connect(addresses.as_slice()).await;
    stream.map_err(|error| DeliveryError::unreachable(url, "connecting", error))
}

/// Sends one request and closes the connection.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    url: &WebhookUrl,
    mut headers: header::HeaderMap,
    body: Bytes,
) -> Result<WebhookResponse, DeliveryError> {
    let failed = |error| DeliveryError::unreachable(url, "HTTP", error);
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(failed)?;
    let value = |text: &str| header::HeaderValue::from_str(text).expect("visible ASCII");
    // Without the port if it is the scheme's.
    headers.insert(header::HOST, value(url.url().authority()));
    headers.insert(header::CONNECTION, value("close"));
    headers.insert(header::USER_AGENT, value(concat!("garenne/", env!("CARGO_PKG_VERSION"))));
    headers.insert(header::CONTENT_TYPE, value("application/json"));
    let target = &url.url()[url::Position::BeforePath..url::Position::AfterQuery];
    let request = Request::post(target).body(Full::new(body));
    let mut request = request.map_err(|error| DeliveryError::unreachable(url, "HTTP", error))?;
    *request.headers_mut() = headers;
    let response = async {
        let response = sender.send_request(request).await.map_err(failed)?;
        Ok(read(response).await)
    };
    // The connection runs in this future, so that dropping the future ends it.
    let mut connection = std::pin::pin!(connection);
    let mut response = std::pin::pin!(response);
    tokio::select! {
        response = &mut response => response,
        ended = &mut connection => match response.await {
            Ok(response) => Ok(response),
            Err(error) => Err(ended.err().map_or(error, failed)),
        },
    }
}

async fn read(response: Response<Incoming>) -> WebhookResponse {
    let status = response.status().as_u16();
    let retry_after = response.headers().get(header::RETRY_AFTER);
    let retry_after = retry_after.and_then(|value| value.to_str().ok()).map(str::to_owned);
    // The status decides. A body that is too long or incomplete is ignored.
    let body = Limited::new(response.into_body(), MAX_BODY_BYTES).collect().await;
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    let text = String::from_utf8_lossy(&body);
    let text =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_QUOTED_CHARS).collect::<String>();
    WebhookResponse { status, retry_after, text: text.trim().to_owned() }
}
