//! Every command of the console ends soon and says what it waited for, or which right is missing, while the broker has an
//! alarm, the broker or the database does not answer, or the user has no rights.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, ensure};
use clap::CommandFactory;
use futures_util::{StreamExt, TryStreamExt, stream};
use garenne_console::cli::Cli;
use garenne_tests::harness::{
    broker::{Broker, BrokerOptions},
    client::with_id,
    postgres::Postgres,
    process::{Ended, Program},
    suite,
    test_env::TestEnv,
    vhost::Rights,
};
use tokio::time::Instant;

/// What a command needs, and so what it waits for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Needs {
    /// The broker, and it publishes or takes messages: an alarm stops it.
    Publishes,
    /// The broker, but no confirm of a message: an alarm does not stop it.
    Reads,
    /// The workers' database.
    Database,
    /// No server.
    Nothing,
}

use Needs::{Database, Nothing, Publishes, Reads};

const WINDOW: &str =
    "--device d --metric m --from 2026-01-01T00:00:00Z --to 2026-01-02T00:00:00Z --reason test --yes";
const ID: &str = "0198c5c2-7d1e-7000-8000-000000000000";

/// Every command with arguments that it accepts, and what it needs. `WINDOW` and `ID` stand for the constants; files are
/// [`FILES`].
const COMMANDS: [(&str, &str, Needs); 48] = [
    ("status", "", Publishes),
    ("topology apply", "", Reads),
    ("topology check", "", Reads),
    ("topology export", "", Reads),
    ("database migrate", "", Database),
    ("database check", "", Database),
    ("database prune", "prune.toml", Database),
    ("dead list", "", Reads),
    ("dead show", "letter", Reads),
    ("dead replay", "--all", Publishes),
    ("dead edit", "letter --payload payload.json", Publishes),
    ("dead drop", "--all --yes", Publishes),
    ("unroutable list", "", Reads),
    ("unroutable replay", "--all", Publishes),
    ("unroutable drop", "--all --yes", Publishes),
    ("task stop", "some", Publishes),
    ("task find", "some", Reads),
    ("task waiting", "", Reads),
    ("task run-now", "some", Reads),
    ("queue list", "", Reads),
    ("queue purge", "garenne.tasks.slow --yes", Publishes),
    ("drain", "w", Publishes),
    ("quiet", "--all", Publishes),
    ("resume", "--all", Publishes),
    ("group pause", "g", Publishes),
    ("group resume", "g", Publishes),
    ("lane pause", "fast", Publishes),
    ("lane resume", "fast", Publishes),
    ("kind pause", "k", Publishes),
    ("kind resume", "k", Publishes),
    ("readings latest", "", Database),
    ("readings list", "--device d", Database),
    ("readings recalibrate", "--calibration calibration.toml", Database),
    ("readings flag", "WINDOW", Database),
    ("readings amend", "WINDOW --value 1", Database),
    ("readings delete", "WINDOW", Database),
    ("readings corrections", "", Database),
    ("alarms list", "", Database),
    ("alarms ack", "ID", Database),
    ("alarms snooze", "ID --for 1h", Database),
    ("alarms unsnooze", "ID", Database),
    ("alarms maintenance add", "--device d --for 1h --reason test", Database),
    ("alarms maintenance list", "", Database),
    ("alarms maintenance end", "ID", Database),
    ("audit list", "", Reads),
    // A program that ends at once.
    ("handler check", "-- false", Nothing),
    ("operators hash", "anna", Nothing),
    ("completions", "bash", Nothing),
];
/// The commands of the default run: of each way to wait, the one that an operator needs first. The full run has all.
const FIRST: [&str; 11] = [
    "status",
    "task stop",
    "lane pause",
    "task find",
    "queue list",
    "dead list",
    "dead replay",
    "audit list",
    "readings latest",
    "alarms list",
    "completions",
];
/// The files that commands read.
const FILES: [(&str, &str); 3] = [
    ("prune.toml", "[[retention]]\nkeep = \"30d\"\n"),
    ("calibration.toml", "[[calibration]]\ndevice = \"d\"\nmetric = \"m\"\noffset = 1.0\n"),
    ("payload.json", "{}"),
];
/// These run until they are stopped.
const ENDLESS: [&str; 2] = ["top", "dashboard"];

/// How much longer than its limit a command may take on a busy machine.
const SLACK: Duration = Duration::from_secs(30);
/// Commands at once.
const AT_ONCE: usize = 8;

/// The commands of the command line, each with its parents: `alarms maintenance add`.
fn commands() -> BTreeSet<String> {
    fn walk(command: &clap::Command, parents: &str, found: &mut BTreeSet<String>) {
        for sub in command.get_subcommands().filter(|it| it.get_name() != "help") {
            let name = format!("{parents}{}", sub.get_name());
            match sub.has_subcommands() {
                true => walk(sub, &format!("{name} "), found),
                false => drop(found.insert(name)),
            }
        }
    }
    let mut found = BTreeSet::new();
    walk(&Cli::command(), "", &mut found);
    found
}

#[test]
fn the_table_has_every_command_of_the_console() {
    let listed: BTreeSet<_> =
        COMMANDS.iter().map(|(name, ..)| *name).chain(ENDLESS).map(str::to_owned).collect();
    assert_eq!(commands(), listed);
    assert!(FIRST.iter().all(|name| listed.contains(*name)), "{FIRST:?}");
}

/// The servers of a command.
#[derive(Clone, Copy, Debug)]
struct Urls<'u> {
    broker: &'u str,
    database: Option<&'u str>,
}

/// Runs a command. It must end, with or without success.
async fn ends(env: &TestEnv, urls: Urls<'_>, limit: u64, (name, arguments): (&str, &str)) -> Result<Ended> {
    let arguments = arguments.replace("WINDOW", WINDOW).replace("ID", ID);
    let program = Program::new("garenne").option("--amqp-url", urls.broker);
    let program = match urls.database {
        Some(database) => program.env("GARENNE_POSTGRES_URL", database),
        None => program,
    };
    let program = program.option("--timeout", format!("{limit}s"));
    let words = name.split(' ').chain(arguments.split_whitespace());
    let program = words.fold(program, |program, word| match FILES.iter().any(|(file, _)| *file == word) {
        true => program.arg(env.folder().join(word)),
        false => program.arg(word),
    });
    let began = Instant::now();
    let ended = program.env("GARENNE_LOG", "off").run().await?;
    let took = began.elapsed();
    ensure!(took < Duration::from_secs(limit) + SLACK, "{name} took {took:?}: {ended:?}");
    Ok(ended)
}

/// Runs all commands that need one of these, some at once, and checks what each says.
async fn all_end(
    env: &TestEnv,
    urls: Urls<'_>,
    limit: u64,
    needs: &[Needs],
    check: impl Fn(&str, Needs, &Ended, &str) -> Result<()>,
) -> Result<()> {
    for (file, text) in FILES {
        std::fs::write(env.folder().join(file), text)?;
    }
    let is_first = |name: &str| suite::is_full() || FIRST.contains(&name);
    let wanted = COMMANDS.iter().filter(|(name, _, of)| is_first(name) && needs.contains(of));
    let ends = stream::iter(wanted).map(async |(name, arguments, of)| {
        let ended = ends(env, urls, limit, (name, arguments)).await?;
        let said = [ended.stdout.join("\n"), ended.stderr.join("\n")].join("\n");
        check(name, *of, &ended, &said).with_context(|| format!("{name}: {ended:?}"))
    });
    ends.buffer_unordered(AT_ONCE).try_collect().await
}

const OF_BROKER: [Needs; 2] = [Publishes, Reads];

#[tokio::test]
async fn console_commands_end_while_an_alarm_blocks_publishers() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let env = TestEnv::on(&broker).await?;
    let worker = env.worker("w")?.start().await?;
    for (queue, id) in [("garenne.dead", "letter"), ("garenne.unroutable", "stray")] {
        env.client().publish("", queue, with_id(id), b"{}").await?;
    }
    broker.set_disk_alarm(true).await?;
    let broker_url = env.vhost().amqp_url();
    let urls = Urls { broker: &broker_url, database: None };
    all_end(&env, urls, 10, &OF_BROKER, |name, needs, ended, said| {
        if needs == Publishes {
            // The alarm is what `status` is asked for.
            ensure!(ended.code == Some(if name == "status" { 1 } else { 69 }), "exit code");
            ensure!(said.contains("alarm") && said.contains("blocks publishers"), "the alarm is not named");
        }
        ensure!(ended.code == Some(0) || !said.is_empty(), "it says nothing");
        Ok(())
    })
    .await?;
    broker.set_disk_alarm(false).await?;
    worker.kill().await?;
    Ok(())
}

#[tokio::test]
async fn console_commands_end_while_the_broker_is_frozen() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let env = TestEnv::on(&broker).await?;
    env.garenne(&["topology", "apply"]).await?;
    broker.pause().await?;
    let urls = Urls { broker: env.operator_url(), database: None };
    let ended = all_end(&env, urls, 1, &OF_BROKER, |_, _, ended, said| {
        ensure!(ended.code == Some(69) && said.contains("the broker"), "the broker is not named");
        Ok(())
    });
    ended.await?;
    broker.unpause().await
}

#[tokio::test]
async fn console_commands_end_while_the_database_is_frozen() -> Result<()> {
    let env = TestEnv::new().await?;
    let postgres = Postgres::start().await?;
    let database = postgres.database().await?;
    let url = database.url();
    env.garenne(&["database", "migrate", "--postgres-url", &url]).await?;
    postgres.pause().await?;
    let urls = Urls { broker: env.operator_url(), database: Some(&url) };
    let ended = all_end(&env, urls, 1, &[Database], |_, _, ended, said| {
        ensure!(ended.code != Some(0) && said.contains("127.0.0.1"), "the database is not named");
        Ok(())
    });
    ended.await?;
    postgres.unpause().await
}

#[tokio::test]
async fn console_commands_without_rights_end_at_once_and_name_the_right() -> Result<()> {
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    for (queue, id) in [("garenne.dead", "letter"), ("garenne.unroutable", "stray")] {
        env.client().publish("", queue, with_id(id), b"{}").await?;
    }
    let rights = Rights { configure: "^$", write: "^$", read: "^$" };
    let broker = env.vhost().user_url("nobody", rights).await?;
    let urls = Urls { broker: &broker, database: None };
    all_end(&env, urls, 10, &OF_BROKER, |name, _, ended, said| {
        // Before RabbitMQ 4.3.1, a queue's counts need no right, and of an empty queue they are all there is to show.
        let counts = ["topology check", "topology export", "queue list", "task waiting"].contains(&name);
        let allowed = counts && ended.code == Some(0);
        // Where it may list the queues, it says what it could not search.
        let ended_so = ended.code == Some(77) || name == "task find" && ended.code == Some(1);
        let named = ended_so && said.contains("lacks the right");
        ensure!(allowed || named, "the right is not named");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn console_commands_that_need_no_server_end_without_one() -> Result<()> {
    let env = TestEnv::new().await?;
    let urls = Urls { broker: "amqp://127.0.0.1:1", database: None };
    all_end(&env, urls, 1, &[Nothing], |name, _, ended, said| {
        // The password is read from the standard input, which is empty.
        let code = match name {
            "operators hash" => 2,
            "handler check" => 1,
            _ => 0,
        };
        ensure!(ended.code == Some(code) && !said.contains("no progress"), "exit code");
        Ok(())
    })
    .await
}
