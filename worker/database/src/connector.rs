//! Opens connections, with TLS if the URL demands it.

use std::{error::Error, sync::Mutex, time::Duration};

use deadpool_postgres::Connect;
use futures_util::{FutureExt, future::BoxFuture};
use garenne_common::{client_tls::client_config, lock::lock, supervise};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Config, NoTls, Socket, tls::MakeTlsConnect};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::database::{Database, is_encrypted, parse_url};

/// The server's own time limit for a statement. It ends statements of programs that no longer wait: their time limits
/// are shorter.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(40);

/// Connects the members of the pool.
///
/// A URL that comes from a file is read again for each connection, and so are the certificates, so that
/// renewed ones take effect without a restart.
pub(crate) struct Connector {
    database: Database,
    /// From the last time the URL could be read.
    last: Mutex<Config>,
}

impl Connector {
    pub(crate) fn new(database: Database) -> Self {
        Self { last: Mutex::new(database.config.clone()), database }
    }

    /// The URL as its file has it now; the last one if the file cannot be read.
    async fn current(&self) -> Config {
        if let Some(file) = self.database.url.file() {
            let again = self.database.url.read_again().await;
            match again.and_then(|url| parse_url(&url)) {
                Ok(config) => *lock(&self.last) = config,
                Err(error) => {
                    let file = file.display();
                    tracing::warn!(%file, error, "failed to read postgres_url again, using the last one");
                }
            }
        }
        lock(&self.last).clone()
    }
}

impl Connect for Connector {
    fn connect(&self, _: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), tokio_postgres::Error>> {
        Box::pin(async {
            let config = self.current().await;
            let (client, connection) = if is_encrypted(&config) {
                let certificates = self.database.certificates.clone();
                let config_from_files = move || {
                    let loaded = client_config(&certificates).map(MakeRustlsConnect::new);
                    loaded.map_err(|error| format!("postgres_tls.{error}"))
                };
                let tls = supervise::spawn_blocking("postgres certificates", config_from_files);
                let tls = LoadedTls(tls.await.unwrap_or_else(|failure| Err(failure.to_string())));
                let (client, connection) = config.connect(tls).await?;
                (client, connection.boxed())
            } else {
                let (client, connection) = config.connect(NoTls).await?;
                (client, connection.boxed())
            };
            // Exchanges the connection's messages until it ends. The client reports the error to its callers.
            let driver = supervise::isolated("postgres connection", connection);
            let driver = tokio::spawn(async {
                if let Ok(Err(error)) = driver.await {
                    tracing::debug!(%error, "connection to Postgres ended");
                }
            });
            client
                .batch_execute(&format!("SET statement_timeout = {}", STATEMENT_TIMEOUT.as_millis()))
                .await?;
            Ok((client, driver))
        })
    }
}

/// The TLS configuration, or the error of loading it. [`Connect`] can only return errors that the client makes,
/// so the handshake reports this one.
struct LoadedTls(Result<MakeRustlsConnect, String>);

impl MakeTlsConnect<Socket> for LoadedTls {
    type Stream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;
    type TlsConnect = <MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect;
    type Error = Box<dyn Error + Send + Sync>;

    fn make_tls_connect(&mut self, host: &str) -> Result<Self::TlsConnect, Self::Error> {
        match &mut self.0 {
            Ok(tls) => Ok(MakeTlsConnect::<Socket>::make_tls_connect(tls, host)?),
            Err(error) => Err(error.clone().into()),
        }
    }
}
