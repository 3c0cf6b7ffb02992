//! A database that accepts the worker's user only over TLS and with a client certificate.

use std::fs;

use anyhow::Result;
use garenne_tests::harness::{
    authority::Authority,
    postgres::{Database, Postgres},
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::WorkerPlan,
};
use serde_json::json;
use tokio_postgres::Client;

/// The worker's database user. The test's own user connects without TLS.
const USER: &str = "sensor";

/// Writes a file into the server's data directory that only its owner can read: Postgres refuses a key that others can
/// read.
async fn write_file(server: &Client, name: &str, text: &str) -> Result<()> {
    let lines = format!("SELECT regexp_split_to_table($text${}$text$, '\\n')", text.trim_end());
    let copy = format!("COPY ({lines}) TO PROGRAM 'umask 077; cat > {name}'");
    Ok(server.batch_execute(&copy).await?)
}

/// Configures the server to accept the user only with a password and a certificate over TLS.
async fn require_tls(database: &Database, authority: &Authority) -> Result<Client> {
    let server = database.connect().await?;
    let own = authority.sign("127.0.0.1")?;
    for (name, text) in [("ca.pem", authority.pem()), ("cert.pem", own.cert), ("key.pem", own.key)] {
        write_file(&server, name, &text).await?;
    }
    let rules: String =
        server.query_one("SELECT pg_read_file(current_setting('hba_file'))", &[]).await?.get(0);
    let first =
        format!("hostssl all {USER} all scram-sha-256 clientcert=verify-ca\nhost all {USER} all reject\n");
    write_file(&server, "pg_hba.conf", &(first + &rules)).await?;
    for setting in
        ["ssl_ca_file = 'ca.pem'", "ssl_cert_file = 'cert.pem'", "ssl_key_file = 'key.pem'", "ssl = on"]
    {
        server.batch_execute(&format!("ALTER SYSTEM SET {setting}")).await?;
    }
    let user = format!("CREATE ROLE {USER} LOGIN PASSWORD 'first'; GRANT ALL ON SCHEMA public TO {USER}");
    server.batch_execute(&user).await?;
    server.batch_execute("SELECT pg_reload_conf()").await?;
    eventually("the server has reloaded its settings", async || {
        let on: String = database.connect().await?.query_one("SHOW ssl", &[]).await?.get(0);
        Ok(Seen::when(on == "on", on))
    })
    .await?;
    Ok(server)
}

/// The exit code and the last line of standard error of a worker that does not start.
async fn failed_start(plan: WorkerPlan) -> Result<(Option<i32>, String)> {
    let ended = plan.launch().await?.ended().await?;
    Ok((ended.code, ended.stderr.last().cloned().unwrap_or_default()))
}

#[tokio::test]
async fn postgres_and_worker_verify_each_others_certificates() -> Result<()> {
    let (env, postgres, authority) = (TestEnv::new().await?, Postgres::start().await?, Authority::new()?);
    let database = postgres.database().await?;
    let server = require_tls(&database, &authority).await?;
    let file = |name: &str| env.folder().join(name);
    let client = authority.sign("worker")?;
    for (name, text) in [("ca.pem", authority.pem()), ("cert.pem", client.cert), ("key.pem", client.key)] {
        fs::write(file(name), text)?;
    }
    let url = |password: &str, mode: &str| {
        let user = format!("{USER}:{password}@");
        database.url().replacen("garenne:garenne@", &user, 1) + mode
    };
    let plan = |name: &str, mode: &str| -> Result<_> {
        let plan = env.worker(name)?.option("--sink", "postgres").env("GARENNE_CONNECT_TIMEOUT", "1s");
        fs::write(file(name), url("first", mode))?;
        Ok(plan.env("GARENNE_POSTGRES_URL_FILE", file(name).display().to_string()))
    };
    let with = |plan: WorkerPlan, setting: &str, name: &str| {
        plan.env(&format!("GARENNE_POSTGRES_TLS__{setting}"), file(name).display().to_string())
    };
    let full = |name: &str, mode: &str| -> Result<_> {
        let plan = with(plan(name, mode)?, "CA", "ca.pem");
        Ok(with(with(plan, "CERT", "cert.pem"), "KEY", "key.pem"))
    };

    for (plan, code, expected) in [
        (plan("plain", "")?, 1, "pg_hba.conf rejects connection"),
        (plan("without-ca", "?sslmode=require")?, 1, "certificate"),
        (with(plan("without-certificate", "?sslmode=require")?, "CA", "ca.pem"), 1, "certificate"),
        (with(full("absent", "?sslmode=require")?, "CA", "none.pem"), 1, "postgres_tls.ca: "),
        (plan("other", "?sslmode=verify-ca")?, 78, "unknown sslmode \"verify-ca\""),
        (full("needless", "")?, 78, "is for sslmode=require or verify-full"),
    ] {
        let (ended, error) = failed_start(plan).await?;
        assert_eq!(ended, Some(code), "{error}");
        assert!(error.contains(expected), "{expected}: {error}");
    }
    // The server's certificate is for 127.0.0.1, not for localhost.
    let url_by_name =
        fs::read_to_string(file("plain"))?.replacen("127.0.0.1", "localhost", 1) + "?sslmode=verify-full";
    let by_name = full("by-name", "")?;
    fs::write(file("by-name"), url_by_name)?;
    let (code, error) = failed_start(by_name).await?;
    assert!(code == Some(1) && error.contains("certificate not valid for name"), "{error}");

    // The limit of the others is too short for a start on a busy machine.
    let known = full("known", "?sslmode=verify-full")?.env("GARENNE_CONNECT_TIMEOUT", "60s");
    let worker = known.start().await?;
    let stored = async |count: i64| {
        eventually(format!("{count} results stored"), async || {
            let row = server.query_one("SELECT count(*) FROM garenne_results", &[]).await?;
            Ok(Seen::when(row.get::<_, i64>(0) == count, row.get::<_, i64>(0)))
        })
        .await
    };
    env.publish("bench.noop", &json!({}), "before", 20).await?;
    stored(20).await?;
    let query = "SELECT count(*), count(*) FILTER (WHERE ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = $1";
    let row = server.query_one(query, &[&USER]).await?;
    let (all, encrypted): (i64, i64) = (row.get(0), row.get(1));
    assert!(all > 0 && all == encrypted, "{encrypted} of {all} connections are encrypted");

    // The password changes. The worker reads its URL from a file, so only the file has to be changed.
    server.batch_execute(&format!("ALTER ROLE {USER} PASSWORD 'second'")).await?;
    // A statement of its own: until the change is committed, the worker connects again with the first password.
    let disconnect =
        format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{USER}'");
    server.batch_execute(&disconnect).await?;
    env.publish("bench.noop", &json!({}), "after", 20).await?;
    worker.until_logged("password authentication failed").await?;
    fs::write(file("known"), url("second", "?sslmode=verify-full") + "\n")?;
    stored(40).await?;
    let log = worker.process().stderr().lines();
    assert!(!log.iter().any(|line| line.contains("second")), "the log contains a password: {log:?}");
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.acked, receipt.dead), (40, 0), "{receipt:?}");

    // A worker that starts before the file has the new password waits for it.
    let late = full("late", "?sslmode=verify-full")?.env("GARENNE_CONNECT_TIMEOUT", "60s");
    let mut late = late.begin().await?;
    late.until_logged("Postgres unavailable, retrying").await?;
    fs::write(file("late"), url("second", "?sslmode=verify-full"))?;
    late.until_ready().await?;
    assert_eq!(late.stop().await?.code, 0);
    Ok(())
}
