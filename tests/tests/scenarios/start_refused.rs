//! A worker that cannot start prints one line with the reason and the remedy, and ends with the documented exit code.

use anyhow::{Context, Result, ensure};
use garenne_tests::harness::{process::Ended, test_env::TestEnv, vhost::Rights, worker::WorkerPlan};

/// The exit code and the error message, which must be one line besides the log.
async fn failed_start(plan: &WorkerPlan) -> Result<(Option<i32>, String)> {
    let Ended { code, stdout, stderr, .. } = plan.launch().await?.ended().await?;
    ensure!(stdout.is_empty(), "standard output is for results only: {stdout:?}");
    let (log, error): (Vec<_>, Vec<_>) = stderr.iter().partition(|line| line.starts_with('{'));
    ensure!(error.len() == 1, "one line was expected: {error:?}, log {log:?}");
    let error = error[0]
        .strip_prefix("garenne-worker: ")
        .context("the line does not begin with the program's name")?;
    ensure!(!error.contains("secret"), "the error contains the password: {error}");
    Ok((code, error.to_owned()))
}

/// Declares the topology by having a worker start and stop.
async fn topology(env: &TestEnv) -> Result<()> {
    env.worker("first")?.start().await?.stop().await.map(drop)
}

fn address(env: &TestEnv) -> String {
    let url = env.vhost().amqp_url();
    let authority = url.rsplit('@').next().unwrap_or_default();
    authority.split('/').next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn worker_needs_no_configure_permission_if_the_topology_exists() -> Result<()> {
    let env = TestEnv::new().await?;
    topology(&env).await?;
    let rights = Rights {
        configure: r"^garenne\.worker\..*",
        write: "^(garenne\\..*|amq\\.default)$",
        read: "^garenne\\..*",
    };
    let url = env.vhost().user_url("limited", rights).await?;
    let plan = env.worker_at("limited", &url)?.env("GARENNE_UNKNOWN_KIND_WAIT", "0s");
    let worker = plan.stdout().start().await?;
    env.publish("bench.fail", &serde_json::json!({"times": 1}), "fails", 5).await?;
    env.publish("bench.nothing", &serde_json::json!({}), "unknown", 1).await?;
    worker.until_done(5).await?;
    env.until_ready_in("garenne.dead", 1).await?;
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.acked, receipt.retried, receipt.dead), (5, 5, 1));
    Ok(())
}

#[tokio::test]
async fn missing_topology_without_the_configure_permission() -> Result<()> {
    let env = TestEnv::new().await?;
    let url = env.vhost().user_url("limited", Rights { configure: "^$", write: ".*", read: ".*" }).await?;
    let (code, error) = failed_start(&env.worker_at("limited", &url)?).await?;
    assert_eq!(code, Some(77), "{error}");
    assert_eq!(
        error,
        "exchange \"garenne.unroutable\" is missing and this user may not create it: \
         run `garenne topology apply` as a user with the configure permission"
    );
    Ok(())
}

#[tokio::test]
async fn missing_read_permission() -> Result<()> {
    let env = TestEnv::new().await?;
    topology(&env).await?;
    let url = env
        .vhost()
        .user_url("limited", Rights { configure: "^garenne\\.worker\\..*", write: ".*", read: "^$" })
        .await?;
    let (code, error) = failed_start(&env.worker_at("limited", &url)?).await?;
    assert_eq!(code, Some(77), "{error}");
    // It ends at the first queue that it may not read, without retries.
    let stream = ["directives", "lifecycle"]
        .iter()
        .any(|it| error.contains(&format!("access to queue 'garenne.{it}'")));
    assert!(error.contains("ACCESS_REFUSED") && stream, "{error}");
    assert!(error.ends_with("`rabbitmqctl set_permissions` gives the user this right"), "{error}");
    Ok(())
}

#[tokio::test]
async fn wrong_password() -> Result<()> {
    let env = TestEnv::new().await?;
    let url = env.vhost().amqp_url().replace("guest:guest", "guest:secret");
    let (code, error) = failed_start(&env.worker_at("wrong", &url)?).await?;
    assert_eq!(code, Some(77), "{error}");
    let expected = format!(
        "the broker at {} refused user \"guest\" on virtual host \"{}\": ",
        address(&env),
        env.vhost().name()
    );
    assert!(error.starts_with(&expected), "{error}");
    let advice =
        "check the user, password and virtual host of the setting amqp_url and the user's permissions";
    assert!(error.ends_with(advice), "{error}");
    Ok(())
}

#[tokio::test]
async fn missing_virtual_host() -> Result<()> {
    let env = TestEnv::new().await?;
    let url = env.vhost().amqp_url().replace(env.vhost().name(), "missing");
    let (code, error) = failed_start(&env.worker_at("wrong", &url)?).await?;
    assert_eq!(code, Some(77), "{error}");
    assert!(error.contains("on virtual host \"missing\""), "{error}");
    Ok(())
}

#[tokio::test]
async fn unavailable_broker() -> Result<()> {
    let env = TestEnv::new().await?;
    let address = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let plan = env.worker_at("w", &format!("amqp://guest:secret@{address}/%2f"))?;
    let (code, error) = failed_start(&plan.env("GARENNE_CONNECT_TIMEOUT", "1s")).await?;
    assert_eq!(code, Some(69), "{error}");
    assert!(error.starts_with(&format!("no broker at {address}: ")), "{error}");
    assert!(error.ends_with("is RabbitMQ running there? (setting amqp_url)"), "{error}");
    Ok(())
}

#[tokio::test]
async fn queue_with_other_arguments() -> Result<()> {
    let env = TestEnv::new().await?;
    let plain = lapin::options::QueueDeclareOptions { durable: true, ..Default::default() };
    env.client().channel().queue_declare("garenne.dead".into(), plain, Default::default()).await?;
    let (code, error) = failed_start(&env.worker_at("w", &env.vhost().amqp_url())?).await?;
    assert_eq!(code, Some(1), "{error}");
    assert!(error.starts_with("queue \"garenne.dead\" exists with other arguments ("), "{error}");
    assert!(error.contains("`garenne topology check`"), "{error}");
    Ok(())
}

#[tokio::test]
async fn bad_settings_are_refused_before_any_connection() -> Result<()> {
    let env = TestEnv::new().await?;
    let url = "amqp://guest:secret@127.0.0.1:1/%2f";
    let plan = || env.worker_at("w", url);
    let cases = [
        (plan()?.option("--prefetch", "2001"), "prefetch"),
        (plan()?.lane("fast:prefetch=2,concurrency=1..4"), "lanes.fast.prefetch = 2"),
        (plan()?.lane("other:prefetch=2"), "other"),
        (plan()?.option("--shutdown-mode", "gently"), "gently"),
        (plan()?.env("GARENNE_PREFETHC", "5"), "prefethc"),
        (plan()?.option("--sink", "postgres"), "postgres_url"),
        (plan()?.env("GARENNE_RETRY__DELAYS", "5s,1s"), "retry.delays"),
        (plan()?.option("--max-attempts", "0"), "max_attempts"),
    ];
    for (plan, named) in cases {
        let (code, error) = failed_start(&plan).await?;
        assert_eq!(code, Some(78), "{error}");
        assert!(error.contains(named), "the error does not contain {named}: {error}");
    }
    Ok(())
}

#[tokio::test]
async fn admin_port_in_use() -> Result<()> {
    let env = TestEnv::new().await?;
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    let (code, error) = failed_start(&env.worker("second")?.option("--admin", &address)).await?;
    assert_eq!(code, Some(78), "{error}");
    assert!(error.contains(&address) && error.contains("already in use"), "{error}");
    Ok(())
}

#[tokio::test]
async fn unavailable_postgres() -> Result<()> {
    let env = TestEnv::new().await?;
    let address = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let plan = env.worker("storing")?.option("--sink", "postgres");
    let plan = plan.option("--postgres-url", format!("postgres://garenne:secret@{address}/garenne"));
    let plan = plan.env("GARENNE_CONNECT_TIMEOUT", "1s");
    let (code, error) = failed_start(&plan).await?;
    assert_eq!(code, Some(1), "{error}");
    assert!(error.starts_with(&format!("cannot use Postgres at {address}: ")), "{error}");
    assert!(error.ends_with("; check that it is running (--postgres-url)"), "{error}");
    Ok(())
}
