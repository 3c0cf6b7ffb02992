//! Opens connections to one broker: URL, certificates, a timeout per attempt, and retries of a whole start.

use std::{
    fmt,
    sync::{Arc, OnceLock, PoisonError, RwLock},
    time::Duration,
};

use backon::Retryable;
#[cfg(feature = "program")]
use garenne_common::config::Common;
use garenne_common::{
    backoff::Backoff, certificates::Certificates, connection::Role, exit::Exit, secret_url::SecretUrl,
};
use garenne_protocol::topology::BrokerVersion;
use lapin::{
    Connection, ConnectionProperties,
    uri::{AMQPScheme, AMQPUri, SASLMechanism},
};
use tokio::time::{Instant, sleep};
use url::{Host, Url};

use super::{
    error::{BrokerError, address_of},
    frames,
    transport::Tls,
};

/// Opens connections to one broker.
#[derive(Clone)]
pub struct Broker {
    /// Shared by all clones: when one of them reads a new URL from the file, all use it.
    uri: Arc<RwLock<AMQPUri>>,
    /// Set if the URL came from a file, which is read again for each connection.
    source: Option<SecretUrl>,
    /// How long a refused login is repeated if the URL came from a file.
    login_timeout: Duration,
    tls: Certificates,
    program: String,
    /// From `connection.start` of the last connection of any clone; `None` after a failed attempt.
    version: Arc<RwLock<Option<BrokerVersion>>>,
}

/// Largest frame offered to the broker, in bytes: RabbitMQ's own default.
const FRAME_MAX: u32 = 131_072;
/// Limit for one connection attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

impl Broker {
    /// A broker at `url`. Its connections are named `<program> <role>`, as the management UI shows them.
    ///
    /// # Errors
    /// [`BrokerError::Url`].
    pub fn new(url: &str, program: &str) -> Result<Self, BrokerError> {
        Ok(Self {
            uri: Arc::new(RwLock::new(parse(url)?)),
            source: None,
            login_timeout: Duration::ZERO,
            tls: Certificates::default(),
            program: program.to_owned(),
            version: Arc::default(),
        })
    }

    /// The broker of the settings `amqp_url` and `amqp_tls`. A URL that came from a file is read again for each
    /// connection, so that a rotated password needs no restart.
    ///
    /// # Errors
    /// [`BrokerError::Url`].
    #[cfg(feature = "program")]
    pub fn configured(common: &Common, program: &str) -> Result<Self, BrokerError> {
        let url = &common.amqp_url;
        let source = url.file().is_some().then(|| url.clone());
        let broker = Self { source, ..Self::new(url.expose(), program)? };
        Ok(broker.with_certificates(common.amqp_tls.clone()))
    }

    /// Uses these files for `amqps`.
    #[must_use]
    pub fn with_certificates(self, tls: Certificates) -> Self {
        Self { tls, ..self }
    }

    /// Repeats a login that the broker refuses for this long, in each connection attempt, if the URL is read again from a
    /// file: the password there may be about to change. For a command, which does not try again by itself.
    #[must_use]
    pub fn with_login_timeout(self, login_timeout: Duration) -> Self {
        Self { login_timeout, ..self }
    }

    fn uri(&self) -> AMQPUri {
        self.uri.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The URL that the file holds now, or the last valid one if it cannot be read.
    async fn current(&self) -> AMQPUri {
        if let Some(source) = &self.source {
            let read =
                source.read_again().await.and_then(|url| parse(url.expose()).map_err(|e| e.to_string()));
            match read {
                Ok(uri) => *self.uri.write().unwrap_or_else(PoisonError::into_inner) = uri,
                Err(problem) => {
                    let file = source.file().unwrap_or("".as_ref()).display();
                    tracing::warn!(%file, problem, "cannot read amqp_url again, using the last valid one");
                }
            }
        }
        self.uri()
    }

    /// `host:port`, for messages.
    pub fn address(&self) -> String {
        address_of(&self.uri())
    }

    /// The virtual host.
    pub fn vhost(&self) -> String {
        self.uri().vhost
    }

    /// The user that connections authenticate as; [`None`] if the broker takes it from the client's certificate.
    pub fn user(&self) -> Option<String> {
        let uri = self.uri();
        let external = uri.query.auth_mechanism == Some(SASLMechanism::External);
        (!external).then_some(uri.authority.userinfo.username)
    }

    /// Converts an error of a connection to this broker into one that says what to do.
    pub fn explain(&self, error: &lapin::Error) -> BrokerError {
        BrokerError::from_lapin(error, &self.uri(), self.source.is_some())
    }

    /// The error of an operation on a connection to this broker that the broker denied with this reply text.
    pub fn denied(&self, detail: &str) -> BrokerError {
        BrokerError::denied(detail, &self.uri(), self.source.is_some())
    }

    /// Makes one connection attempt, within 5 s: a proxy in front of the broker may accept the connection and
    /// never answer. Only a refused login may be repeated ([`with_login_timeout`](Self::with_login_timeout)).
    ///
    /// # Errors
    /// The broker is unreachable or refuses the connection, or a certificate file cannot be used.
    pub async fn connect(&self, role: Role) -> Result<Connection, BrokerError> {
        let exit = |error: &BrokerError| match error {
            BrokerError::Denied { from_file: true, .. } => Exit::BrokerUnavailable,
            _ => Exit::Failed,
        };
        retry_while_unavailable(self.login_timeout, exit, || self.connect_once(role)).await
    }

    async fn connect_once(&self, role: Role) -> Result<Connection, BrokerError> {
        let name = format!("{} {}", self.program, role.as_str());
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let uri = self.current().await;
        let tls = Tls::read(&uri, &self.tls)?;
        let version = Arc::new(OnceLock::new());
        let attempt = frames::connect(uri.clone(), properties, tls, Arc::clone(&version));
        let connected = match tokio::time::timeout(ATTEMPT_TIMEOUT, attempt).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(BrokerError::from_lapin(&error, &uri, self.source.is_some())),
            Err(_) => Err(BrokerError::Unavailable {
                address: self.address(),
                detail: format!("no AMQP answer within {} s", ATTEMPT_TIMEOUT.as_secs()),
            }),
        };
        // A broker that restarted may have another version.
        let reported = connected.as_ref().ok().and_then(|_| version.get().copied());
        *self.version.write().unwrap_or_else(PoisonError::into_inner) = reported;
        connected
    }

    /// The broker's version, from the last connection of any clone. If there was none, or the last attempt
    /// failed, opens a connection to ask for it.
    ///
    /// # Errors
    /// As [`Broker::connect`], and [`BrokerError::NoVersion`].
    pub async fn version(&self) -> Result<BrokerVersion, BrokerError> {
        if let Some(version) = self.last_version() {
            return Ok(version);
        }
        let connection = self.connect(Role::Operate).await?;
        let reported = self.last_version();
        if let Err(error) = connection.close(200, "done".into()).await {
            tracing::debug!(%error, "the connection ended before it was closed");
        }
        reported.ok_or_else(|| BrokerError::NoVersion { address: self.address() })
    }

    fn last_version(&self) -> Option<BrokerVersion> {
        *self.version.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Repeats `attempt` while it fails with [`Exit::BrokerUnavailable`] and `budget` is not spent, with backoff from 100 ms
/// to 5 s and jitter. Programs start with it: wherever in its first dialogue with the broker a program loses the
/// connection, it begins again.
///
/// # Errors
/// The last attempt's error. An error with another exit code is returned at once.
pub async fn retry_while_unavailable<T, E: fmt::Display, F: Future<Output = Result<T, E>>>(
    budget: Duration,
    exit: impl Fn(&E) -> Exit,
    attempt: impl FnMut() -> F,
) -> Result<T, E> {
    let until = Instant::now() + budget;
    attempt
        .retry(Backoff::default())
        .sleep(sleep)
        .when(|error| exit(error) == Exit::BrokerUnavailable && Instant::now() < until)
        .notify(|error, wait| tracing::info!(%error, ?wait, "cannot connect to the broker, retrying"))
        .await
}

fn parse(url: &str) -> Result<AMQPUri, BrokerError> {
    let mut uri: AMQPUri = url.parse().map_err(BrokerError::Url)?;
    // AMQPUri ignores an IPv6 address and takes `localhost`.
    if let Some(Host::Ipv6(address)) = Url::parse(url).ok().as_ref().and_then(Url::host) {
        uri.authority.host = address.to_string();
    }
    if uri.scheme == AMQPScheme::AMQPS && cfg!(not(feature = "tls")) {
        return Err(BrokerError::NoTls);
    }
    // Seconds. Two missed heartbeats end a half-open connection.
    uri.query.heartbeat.get_or_insert(10);
    // Without it, lapin grows its buffers after the handshake: 8 MB more resident memory per connection.
    uri.query.frame_max.get_or_insert(FRAME_MAX);
    Ok(uri)
}

/// Without the password.
impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Broker").field(&self.address()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_unreachable_broker_is_a_one_line_error_with_advice() {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let broker = Broker::new(&format!("amqp://guest:secret@127.0.0.1:{port}/%2f"), "test").unwrap();
        let error = broker.connect(Role::Operate).await.unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with(&format!("no broker at 127.0.0.1:{port}: ")), "{text}");
        assert!(text.ends_with("is RabbitMQ running there? (setting amqp_url)"), "{text}");
        assert!(!text.contains('\n') && !text.contains("secret"), "{text}");
        assert!(!error.is_final());
    }

    #[tokio::test]
    async fn a_broker_at_an_ipv6_address_is_connected_to() {
        let broker = Broker::new("amqps://guest:secret@[fd00::1]/%2f", "test").or_else(|_| {
            // Without the feature `tls`.
            Broker::new("amqp://guest:secret@[fd00::1]:5671/%2f", "test")
        });
        assert_eq!(broker.unwrap().address(), "[fd00::1]:5671");
        // Not every machine has IPv6.
        let Ok(listener) = tokio::net::TcpListener::bind("[::1]:0").await else { return };
        let address = listener.local_addr().unwrap();
        let broker = Broker::new(&format!("amqp://guest:secret@{address}/%2f"), "test").unwrap();
        let accepted = async { drop(listener.accept().await.unwrap()) };
        let (connected, accepted) =
            tokio::join!(broker.connect(Role::Operate), tokio::time::timeout(ATTEMPT_TIMEOUT, accepted));
        accepted.expect("the connection is to this address");
        let text = connected.unwrap_err().to_string();
        assert!(text.starts_with(&format!("no broker at {address}: ")), "{text}");
    }

    #[test]
    fn the_error_for_a_bad_url_shows_a_valid_one() {
        let error = Broker::new("http://x", "test").err().unwrap();
        assert!(error.to_string().contains("amqp://user:password@host:5672/%2f"), "{error}");
    }
}
