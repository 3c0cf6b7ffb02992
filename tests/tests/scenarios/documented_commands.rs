//! The commands that the documentation shows, run as a reader would: page by page, in their order, in one shell. HTML
//! comments in the pages say what is run and what it prints (`garenne_tests::docs::shown_commands`).

use std::{fs, os::unix::fs::symlink, time::Duration};

use anyhow::{Context, Result, ensure};
use garenne_tests::{
    docs::{
        repository,
        shown_commands::{self, Rule},
    },
    harness::{
        mqtt::Mosquitto,
        port::free_port,
        postgres::Postgres,
        process::{self, Program},
        suite,
        test_env::{DELAYS, TestEnv},
    },
};

/// The database that pages show.
const POSTGRES: &str = "postgres://garenne:secret@127.0.0.1/garenne";
/// The MQTT broker that pages show.
const MQTT: &str = "mqtt://127.0.0.1";

/// Runs the commands of a page. Addresses, folders and credentials in them become those of the test.
async fn follow(page: &str) -> Result<()> {
    let env = TestEnv::new().await?;
    let root = env.folder().join("root");
    let output = env.folder().join("output");
    for folder in [&output, &root.join("home"), &root.join("etc/garenne"), &root.join("var/lib/garenne")] {
        fs::create_dir_all(folder)?;
    }
    let text = fs::read_to_string(repository().join(page))?;
    let mut script = shown_commands::script(&text, &output.display().to_string());
    // Only for pages that use them: the others need no Mosquitto on this machine.
    let database = match script.contains(POSTGRES) {
        true => Some(Postgres::shared().await?.database().await?),
        false => None,
    };
    let mosquitto = match script.contains(MQTT) {
        true => Mosquitto::start(env.folder(), None).await?,
        false => None,
    };
    if script.contains(MQTT) && mosquitto.is_none() {
        suite::leave_out("no Mosquitto is installed (apt-get install mosquitto)");
        return Ok(());
    }
    if let Some(database) = &database {
        script = script.replace(POSTGRES, &database.url());
    }
    if let Some(mosquitto) = &mosquitto {
        script = script.replace(MQTT, &mosquitto.url());
    }
    let listen = format!("127.0.0.1:{}", free_port()?);
    let dashboard = format!("127.0.0.1:{}", free_port()?);
    let binaries = process::binaries().await?;
    let folder = |path: &str| root.join(path).display().to_string();
    for (shown, here) in [
        ("amqp://guest:guest@127.0.0.1:5672/%2f", &env.vhost().amqp_url()),
        ("http://guest:guest@127.0.0.1:15672", &env.vhost().management_url()),
        ("0.0.0.0:8080", &listen),
        ("127.0.0.1:8080", &listen),
        ("127.0.0.1 8080", &listen.replace(':', " ")),
        ("garenne dashboard ", &format!("garenne dashboard --listen {dashboard} ")),
        ("127.0.0.1:9465", &dashboard),
        ("/etc/garenne", &folder("etc/garenne")),
        ("/var/lib/garenne", &folder("var/lib/garenne")),
    ] {
        script = script.replace(shown, here);
    }
    // The reader's folder is the checkout.
    for name in ["examples", "docs", "deploy"] {
        symlink(repository().join(name), root.join(name))?;
    }
    let file = env.folder().join("commands.sh");
    fs::write(&file, format!("cd {}\n{script}", root.display()))?;
    let path = std::env::var("PATH").context("PATH")?;
    let shell = Program::foreign("timeout").arg("--kill-after=5").arg("900").arg("bash").arg(&file);
    let log = env.folder().join("log");
    let ended = shell
        .env("LOG", log.display().to_string())
        .env("PATH", format!("{}:{path}", binaries.display()))
        .env("HOME", folder("home"))
        .env("GARENNE_AMQP_URL", env.vhost().amqp_url())
        .env("GARENNE_ADMIN", "127.0.0.1:0")
        .env("GARENNE_LISTEN", &listen)
        .env("GARENNE_RETRY__DELAYS", DELAYS)
        .start()
        .await?
        .ended_within(Duration::from_secs(960))
        .await?;
    let log = fs::read_to_string(log)? + &ended.stderr.join("\n");
    let line = log.lines().rev().find_map(|line| line.strip_prefix("::")).unwrap_or("1");
    ensure!(ended.code == Some(0), "{page}:{line}: exit code {:?}\n{log}", ended.code);
    let mut last = None;
    for shown in shown_commands::shown(&text) {
        match shown.rule {
            Some(Rule::Run(_)) => last = Some(shown.line),
            Some(Rule::Output) => {
                let line = last.context("an output of nothing")?;
                let printed = fs::read_to_string(output.join(format!("{line}.out")))?;
                let missing = shown_commands::missing(&shown.text, &printed);
                let place = format!("{page}:{}", shown.line);
                ensure!(
                    missing.is_none(),
                    "{place}: {:?} is not printed, but\n{printed}",
                    missing.unwrap_or_default()
                );
            }
            _ => {}
        }
    }
    Ok(())
}

macro_rules! pages {
    ($($test:ident: $($page:literal),+;)+) => {$(
        #[tokio::test]
        async fn $test() -> Result<()> {
            $(follow($page).await?;)+
            Ok(())
        }
    )+};
}

pages! {
    the_start: "README.md", "docs/start/broker.md", "docs/start/gateway.md", "docs/start/worker.md";
    inputs: "docs/guides/ingest.md", "docs/ingest.md";
    maps_and_mqtt: "docs/guides/map.md", "docs/guides/mqtt.md";
    spools: "docs/guides/spool.md";
    sensors: "docs/guides/sensors.md";
    operating: "docs/guides/operate.md", "docs/guides/troubleshooting.md", "docs/scaling.md";
}
