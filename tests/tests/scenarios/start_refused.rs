//! A worker that cannot start says in one line why, and what to do, and ends with the right code.

use anyhow::{Context, Result, ensure};
use garenne_tests::harness::{process::Ended, test_env::TestEnv, vhost::Rights, worker::WorkerPlan};

/// Its last words: one line, after whatever it logged.
async fn last_words(plan: &WorkerPlan) -> Result<(Option<i32>, String)> {
    let Ended { code, stdout, stderr, .. } = plan.launch().await?.ended().await?;
    ensure!(stdout.is_empty(), "standard output is for results only: {stdout:?}");
    let (log, words): (Vec<_>, Vec<_>) = stderr.iter().partition(|line| line.starts_with('{'));
    ensure!(words.len() == 1, "one line was expected: {words:?}, log {log:?}");
    let words = words[0].strip_prefix("garenne-worker: ").context("the program's name comes first")?;
    ensure!(!words.contains("secret"), "the password was told: {words}");
    Ok((code, words.to_owned()))
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
async fn worker_needs_no_configure_right_where_the_topology_exists() -> Result<()> {
    let env = TestEnv::new().await?;
    topology(&env).await?;
    let rights = Rights {
        configure: r"^garenne\.worker\..*",
        write: "^(garenne\\..*|amq\\.default)$",
        read: "^garenne\\..*",
    };
    let url = env.vhost().user_url("limited", rights).await?;
    let worker = env.worker_at("limited", &url)?.stdout().start().await?;
    env.publish("bench.fail", &serde_json::json!({"times": 1}), "fails", 5).await?;
    env.publish("bench.nothing", &serde_json::json!({}), "unknown", 1).await?;
    worker.until_done(5).await?;
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.acked, receipt.retried, receipt.dead), (5, 5, 1));
    Ok(())
}

#[tokio::test]
async fn missing_topology_and_no_configure_right() -> Result<()> {
    let env = TestEnv::new().await?;
    let url = env.vhost().user_url("limited", Rights { configure: "^$", write: ".*", read: ".*" }).await?;
    let (code, words) = last_words(&env.worker_at("limited", &url)?).await?;
    assert_eq!(code, Some(77), "{words}");
    assert_eq!(
        words,
        "exchange \"garenne.unroutable\" is missing and this user may not create it: \
         run `garenne topology apply` as a user with the configure permission"
    );
    Ok(())
}

#[tokio::test]
async fn no_read_right() -> Result<()> {
    let env = TestEnv::new().await?;
    topology(&env).await?;
    let url = env
        .vhost()
        .user_url("limited", Rights { configure: "^garenne\\.worker\\..*", write: ".*", read: "^$" })
        .await?;
    let (code, words) = last_words(&env.worker_at("limited", &url)?).await?;
    assert_eq!(code, Some(77), "{words}");
    // It ends at the first thing that it may not read, and waits for nothing.
    let stream = ["directives", "lifecycle"]
        .iter()
        .any(|it| words.contains(&format!("access to queue 'garenne.{it}'")));
    assert!(words.contains("ACCESS_REFUSED") && stream, "{words}");
    Ok(())
}

#[tokio::test]
async fn wrong_password() -> Result<()> {
    let env = TestEnv::new().await?;
    let url = env.vhost().amqp_url().replace("guest:guest", "guest:secret");
    let (code, words) = last_words(&env.worker_at("wrong", &url)?).await?;
    assert_eq!(code, Some(77), "{words}");
    let expected = format!(
        "the broker at {} refused user \"guest\" on virtual host \"{}\": ",
        address(&env),
        env.vhost().name()
    );
    assert!(words.starts_with(&expected), "{words}");
    let advice = "check the user, password and virtual host of --amqp-url and the user's permissions";
    assert!(words.ends_with(advice), "{words}");
    Ok(())
}

#[tokio::test]
async fn missing_virtual_host() -> Result<()> {
    let env = TestEnv::new().await?;
    let url = env.vhost().amqp_url().replace(env.vhost().name(), "nowhere");
    let (code, words) = last_words(&env.worker_at("wrong", &url)?).await?;
    assert_eq!(code, Some(77), "{words}");
    assert!(words.contains("on virtual host \"nowhere\""), "{words}");
    Ok(())
}

#[tokio::test]
async fn broker_down() -> Result<()> {
    let env = TestEnv::new().await?;
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let plan = env.worker_at("lonely", &format!("amqp://guest:secret@{nobody}/%2f"))?;
    let (code, words) = last_words(&plan.env("GARENNE_CONNECT_TIMEOUT", "1s")).await?;
    assert_eq!(code, Some(69), "{words}");
    assert!(words.starts_with(&format!("no broker at {nobody}: ")), "{words}");
    assert!(words.ends_with("is RabbitMQ running there? (--amqp-url)"), "{words}");
    Ok(())
}

#[tokio::test]
async fn topology_differs() -> Result<()> {
    let env = TestEnv::new().await?;
    let plain = lapin::options::QueueDeclareOptions { durable: true, ..Default::default() };
    env.client().channel().queue_declare("garenne.dead".into(), plain, Default::default()).await?;
    let (code, words) = last_words(&env.worker_at("confused", &env.vhost().amqp_url())?).await?;
    assert_eq!(code, Some(1), "{words}");
    assert!(words.starts_with("queue \"garenne.dead\" exists with other arguments ("), "{words}");
    assert!(words.contains("`garenne topology check`"), "{words}");
    Ok(())
}

#[tokio::test]
async fn bad_settings_are_refused_before_any_connection() -> Result<()> {
    let env = TestEnv::new().await?;
    let nobody = "amqp://guest:secret@127.0.0.1:1/%2f";
    let plan = || env.worker_at("misled", nobody);
    let cases = [
        (plan()?.option("--prefetch", "2001"), "prefetch"),
        (plan()?.lane("fast:prefetch=2,concurrency=1..4"), "lanes.fast.prefetch = 2"),
        (plan()?.lane("swift:prefetch=2"), "swift"),
        (plan()?.option("--shutdown-mode", "gently"), "gently"),
        (plan()?.env("GARENNE_PREFETHC", "5"), "prefethc"),
        (plan()?.option("--sink", "postgres"), "postgres_url"),
        (plan()?.env("GARENNE_RETRY__DELAYS", "5s,1s"), "retry.delays"),
        (plan()?.option("--max-attempts", "0"), "max_attempts"),
    ];
    for (plan, named) in cases {
        let (code, words) = last_words(&plan).await?;
        assert_eq!(code, Some(78), "{words}");
        assert!(words.contains(named), "{named} is not named: {words}");
    }
    Ok(())
}

#[tokio::test]
async fn taken_admin_port() -> Result<()> {
    let env = TestEnv::new().await?;
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    let (code, words) = last_words(&env.worker("second")?.option("--admin", &address)).await?;
    assert_eq!(code, Some(78), "{words}");
    assert!(words.contains(&address) && words.contains("already in use"), "{words}");
    Ok(())
}

#[tokio::test]
async fn postgres_away_at_the_start() -> Result<()> {
    let env = TestEnv::new().await?;
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let plan = env.worker("storing")?.option("--sink", "postgres");
    let plan = plan.option("--postgres-url", format!("postgres://garenne:secret@{nobody}/garenne"));
    let plan = plan.env("GARENNE_CONNECT_TIMEOUT", "1s");
    let (code, words) = last_words(&plan).await?;
    assert_eq!(code, Some(1), "{words}");
    assert!(words.starts_with(&format!("cannot use Postgres at {nobody}: ")), "{words}");
    assert!(
        words.ends_with("check that it is running and that the user may create tables (--postgres-url)"),
        "{words}"
    );
    Ok(())
}
