//! A database that talks to the worker's user over TLS only, and only when that user shows a certificate.

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

/// The worker's user there; the test's own is let in without TLS.
const USER: &str = "sensor";

/// Writes a file in the server's own folder, as that user's and nobody else's: a key that others could read is
/// refused.
async fn place(server: &Client, name: &str, text: &str) -> Result<()> {
    let lines = format!("SELECT regexp_split_to_table($text${}$text$, '\\n')", text.trim_end());
    let place = format!("COPY ({lines}) TO PROGRAM 'umask 077; cat > {name}'");
    Ok(server.batch_execute(&place).await?)
}

/// Lets the user in with a password and a certificate.
async fn demand_tls(database: &Database, authority: &Authority) -> Result<Client> {
    let server = database.connect().await?;
    let own = authority.sign("127.0.0.1")?;
    for (name, text) in [("ca.pem", authority.pem()), ("cert.pem", own.cert), ("key.pem", own.key)] {
        place(&server, name, &text).await?;
    }
    let rules: String =
        server.query_one("SELECT pg_read_file(current_setting('hba_file'))", &[]).await?.get(0);
    let first =
        format!("hostssl all {USER} all scram-sha-256 clientcert=verify-ca\nhost all {USER} all reject\n");
    place(&server, "pg_hba.conf", &(first + &rules)).await?;
    for setting in
        ["ssl_ca_file = 'ca.pem'", "ssl_cert_file = 'cert.pem'", "ssl_key_file = 'key.pem'", "ssl = on"]
    {
        server.batch_execute(&format!("ALTER SYSTEM SET {setting}")).await?;
    }
    let user = format!("CREATE ROLE {USER} LOGIN PASSWORD 'first'; GRANT ALL ON SCHEMA public TO {USER}");
    server.batch_execute(&user).await?;
    server.batch_execute("SELECT pg_reload_conf()").await?;
    eventually("the server has read its settings", async || {
        let on: String = database.connect().await?.query_one("SHOW ssl", &[]).await?.get(0);
        Ok(Seen::when(on == "on", on))
    })
    .await?;
    Ok(server)
}

async fn last_words(plan: WorkerPlan) -> Result<(Option<i32>, String)> {
    let ended = plan.launch().await?.ended().await?;
    Ok((ended.code, ended.stderr.last().cloned().unwrap_or_default()))
}

#[tokio::test]
async fn postgres_and_worker_show_each_other_certificates() -> Result<()> {
    let (env, postgres, authority) = (TestEnv::new().await?, Postgres::start().await?, Authority::new()?);
    let database = postgres.database().await?;
    let server = demand_tls(&database, &authority).await?;
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

    for (plan, code, said) in [
        (plan("plain", "")?, 1, "pg_hba.conf rejects connection"),
        (plan("trusting-nobody", "?sslmode=require")?, 1, "certificate"),
        (with(plan("unknown", "?sslmode=require")?, "CA", "ca.pem"), 1, "certificate"),
        (with(full("absent", "?sslmode=require")?, "CA", "none.pem"), 1, "postgres_tls.ca: "),
        (plan("other", "?sslmode=verify-ca")?, 78, "unknown sslmode \"verify-ca\""),
        (full("needless", "")?, 78, "is for sslmode=require or verify-full"),
    ] {
        let (ended, words) = last_words(plan).await?;
        assert_eq!(ended, Some(code), "{words}");
        assert!(words.contains(said), "{said}: {words}");
    }
    // The certificate is for another name than this.
    let named =
        fs::read_to_string(file("plain"))?.replacen("127.0.0.1", "localhost", 1) + "?sslmode=verify-full";
    let misled = full("misled", "")?;
    fs::write(file("misled"), named)?;
    let (code, words) = last_words(misled).await?;
    assert!(code == Some(1) && words.contains("certificate not valid for name"), "{words}");

    let worker = full("known", "?sslmode=verify-full")?.start().await?;
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
    assert!(all > 0 && all == encrypted, "{encrypted} of {all}");

    // A password that is changed under it: who was given it in a file only needs the file changed.
    let change = format!(
        "ALTER ROLE {USER} PASSWORD 'second'; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{USER}'"
    );
    server.batch_execute(&change).await?;
    env.publish("bench.noop", &json!({}), "after", 20).await?;
    worker.until_logged("password authentication failed").await?;
    fs::write(file("known"), url("second", "?sslmode=verify-full") + "\n")?;
    stored(40).await?;
    let log = worker.process().stderr().lines();
    assert!(!log.iter().any(|line| line.contains("second")), "a password is in the log: {log:?}");
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.acked, receipt.dead), (40, 0), "{receipt:?}");
    Ok(())
}
