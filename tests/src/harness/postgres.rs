//! PostgreSQL servers for tests.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, bail};
use tokio::{
    sync::{Mutex, OnceCell},
    time::{Instant, sleep, timeout},
};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use super::{
    engine::{self, Mode},
    node::{Node, NodeSpec},
    port::free_port,
    runtime::{block_on_harness, on_harness, spawn_on_harness},
    wait::{Seen, eventually},
};

/// User, password and first database of every test server.
const USER: &str = "garenne";

/// Timeout of a server's start.
const READY: Duration = Duration::from_secs(180);

/// A running PostgreSQL. Clones share one server, which stops when the last of them is dropped.
#[derive(Clone, Debug)]
pub struct Postgres {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// `Some` until `drop` takes it.
    node: Option<Arc<Node>>,
    port: u16,
}

impl Postgres {
    /// Starts a server for a single scenario, which may stop or kill it.
    ///
    /// # Errors
    /// If it cannot be started or does not answer, with the end of its log.
    pub async fn start() -> Result<Self> {
        let mode = engine::mode().await;
        on_harness(Self::launch(mode)).await
    }

    /// The server that all scenarios of this process share. Each scenario has its own database.
    pub async fn shared() -> Result<Self> {
        static SHARED: OnceCell<Postgres> = OnceCell::const_new();
        SHARED.get_or_try_init(Self::start).await.cloned()
    }

    async fn launch(mode: Mode) -> Result<Self> {
        let port = free_port()?;
        let node = Node::launch(mode, spec(port).await).await?;
        let client = wait_until_ready(&node, port).await?;
        // What a killed server has written stays in the memory of the operating system.
        for setting in ["fsync", "full_page_writes"] {
            client.simple_query(&format!("ALTER SYSTEM SET {setting} = off")).await?;
        }
        client.simple_query("SELECT pg_reload_conf()").await?;
        Ok(Self { inner: Arc::new(Inner { node: Some(Arc::new(node)), port }) })
    }

    /// Creates a database. It is deleted when the value is dropped.
    pub async fn database(&self) -> Result<Database> {
        let name = format!("test_{}", Uuid::new_v4().simple());
        let client = connect(&url(self.inner.port, USER)).await?;
        client.batch_execute(&format!("CREATE DATABASE {name}")).await?;
        Ok(Database { name, server: self.clone(), client: Mutex::default() })
    }

    /// Sends SIGKILL.
    pub async fn kill(&self) -> Result<()> {
        let node = self.node();
        on_harness(async move { node.kill().await }).await
    }

    /// Starts a server that was killed, with the same port and data, and waits until it answers.
    ///
    /// # Errors
    /// If it does not answer in time, with the end of its log.
    pub async fn restart(&self) -> Result<()> {
        let (node, port) = (self.node(), self.inner.port);
        on_harness(async move {
            node.start().await?;
            wait_until_ready(&node, port).await.map(drop)
        })
        .await
    }

    /// Freezes the server: connections stay open and nothing answers.
    pub async fn pause(&self) -> Result<()> {
        let node = self.node();
        on_harness(async move { node.pause().await }).await
    }

    /// Ends a [`pause`](Self::pause).
    pub async fn unpause(&self) -> Result<()> {
        let node = self.node();
        on_harness(async move { node.unpause().await }).await
    }

    fn node(&self) -> Arc<Node> {
        Arc::clone(self.inner.node.as_ref().expect("only drop takes the node"))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The removal of a container needs the runtime of its client.
        if let Some(node) = self.node.take() {
            block_on_harness(async move { drop(node) });
        }
    }
}

/// The database of one scenario. It is deleted when the value is dropped.
#[derive(Debug)]
pub struct Database {
    name: String,
    server: Postgres,
    /// The connection of [`text`](Self::text) and [`count`](Self::count), once it is needed.
    client: Mutex<Option<Arc<Client>>>,
}

impl Database {
    /// Its URL with user and password.
    #[must_use]
    pub fn url(&self) -> String {
        url(self.server.inner.port, &self.name)
    }

    /// The server that it is on.
    #[must_use]
    pub fn server(&self) -> &Postgres {
        &self.server
    }

    /// Connects a client for the test's own queries.
    pub async fn connect(&self) -> Result<Client> {
        connect(&self.url()).await
    }

    /// The connection for single queries. Polls use it, and to open one takes longer than a query.
    async fn client(&self) -> Result<Arc<Client>> {
        let mut client = self.client.lock().await;
        match client.as_ref().filter(|client| !client.is_closed()) {
            Some(client) => Ok(Arc::clone(client)),
            None => Ok(Arc::clone(client.insert(Arc::new(self.connect().await?)))),
        }
    }

    /// The result of a query, as one text; empty if it is null.
    pub async fn text(&self, query: &str) -> Result<String> {
        let row = self.client().await?.query_one(&format!("SELECT ({query})::text"), &[]).await?;
        Ok(row.get::<_, Option<String>>(0).unwrap_or_default())
    }

    /// The number of rows of a table, or of those with a condition: `garenne_alarms WHERE ended IS NULL`.
    pub async fn count(&self, what: &str) -> Result<i64> {
        Ok(self.client().await?.query_one(&format!("SELECT count(*) FROM {what}"), &[]).await?.get(0))
    }

    /// Waits until there are so many.
    pub async fn until_count(&self, what: &str, wanted: i64) -> Result<()> {
        eventually(format!("{wanted} {what}"), async || {
            let found = self.count(what).await?;
            Ok(Seen::when(found == wanted, found))
        })
        .await
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (port, name) = (self.server.inner.port, self.name.clone());
        // Not awaited: databases that are left are removed with the server.
        spawn_on_harness(async move {
            if let Ok(client) = connect(&url(port, USER)).await {
                let _ = client.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await;
            }
        });
    }
}

fn url(port: u16, database: &str) -> String {
    format!("postgres://{USER}:{USER}@127.0.0.1:{port}/{database}")
}

async fn connect(url: &str) -> Result<Client> {
    let (client, connection) =
        timeout(Duration::from_secs(30), tokio_postgres::connect(url, NoTls)).await??;
    // Ends when the client is dropped.
    tokio::spawn(connection);
    Ok(client)
}

async fn spec(port: u16) -> NodeSpec {
    let environment =
        ["POSTGRES_USER", "POSTGRES_PASSWORD", "POSTGRES_DB"].map(|name| (name, USER.to_owned()));
    NodeSpec {
        service: "postgres",
        image: engine::postgres_image().await,
        ready: "database system is ready to accept connections",
        environment: environment.to_vec(),
        files: Vec::new(),
        ports: vec![(port, 5432)],
        member: None,
    }
}

/// Waits until a query is answered. The log is not sufficient: the official image logs that it is ready and then
/// restarts once.
async fn wait_until_ready(node: &Node, port: u16) -> Result<Client> {
    let deadline = Instant::now() + READY;
    loop {
        node.check_alive()?;
        if let Ok(client) = connect(&url(port, USER)).await
            && client.simple_query("SELECT 1").await.is_ok()
        {
            return Ok(client);
        }
        if Instant::now() > deadline {
            bail!("the database did not answer within {READY:?}: {}", node.log().await);
        }
        sleep(Duration::from_millis(50)).await;
    }
}
