//! Runs `docker-compose.yml` unchanged, with its own project name and ports, and with images that it builds.

use std::{collections::BTreeSet, env, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use uuid::Uuid;

use super::{
    cleanup::CleanupShell,
    port::free_port,
    process::{Ended, Process, Program, binary},
    suite,
};

/// The images of the programs.
const IMAGES: [&str; 3] = ["garenne-console", "garenne-producer", "garenne-worker"];

/// Timeout of a build: all programs are compiled, perhaps on two busy cores.
const BUILD: Duration = Duration::from_secs(1200);

/// A compose project. Its containers, volumes, networks and images are removed when the value is dropped.
#[derive(Debug)]
pub struct Stack {
    compose: Vec<String>,
    project: String,
    environment: Vec<(String, String)>,
    events: Process,
    // The last field, so that the clean-up runs after all other drops.
    _cleanup: CleanupShell,
}

impl Stack {
    /// Builds the images with this compose command, such as `docker compose`. Starts no service.
    ///
    /// With `BUILD_PROGRAMS=built` the images get the programs of this test's build instead of compiling them.
    pub async fn build(compose: &str) -> Result<Self> {
        suite::time_this_test();
        let project = format!("garenne-test-{}", Uuid::new_v4().simple());
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docker-compose.yml");
        let mut compose: Vec<String> = compose.split_whitespace().map(str::to_owned).collect();
        for argument in ["-p", &project, "-f", file, "--profile", "metrics"] {
            compose.push(argument.to_owned());
        }
        if env::var("BUILD_PROGRAMS").is_ok_and(|stage| stage == "built") {
            provide_programs().await?;
        }
        let environment =
            vec![("IMAGE_TAG".to_owned(), project.clone()), ("BUILD_PROFILE".to_owned(), "quick".to_owned())];
        let images = IMAGES.map(|name| format!("{name}:{project}"));
        let clean_up = format!(r#""$@" down -v --remove-orphans -t 1; docker rmi {}"#, images.join(" "));
        let cleanup =
            CleanupShell::start(&clean_up, &compose.iter().map(String::as_str).collect::<Vec<_>>())?;
        let label = format!("label=com.docker.compose.project={project}");
        // Without filters, each run of a health check would be an event too.
        let which = ["event=start", "event=die", "event=health_status", &label];
        let listen = which.iter().fold(docker(&["events", "--format", "{{json .}}"]), |program, filter| {
            program.option("--filter", filter)
        });
        let events = listen.start().await?;
        let mut stack = Self { compose, project, environment, events, _cleanup: cleanup };
        stack.finish(&["build"], BUILD).await?;
        // Chosen after the build, because a free port may be in use minutes later.
        for port in ["RABBITMQ_UI_PORT", "GATEWAY_PORT", "DASHBOARD_PORT", "PROMETHEUS_PORT"] {
            stack.environment.push((port.to_owned(), free_port()?.to_string()));
        }
        Ok(stack)
    }

    /// Starts a compose command without waiting for its end.
    pub async fn start(&self, arguments: &[&str]) -> Result<Process> {
        let (program, first) = self.compose.split_first().context("no compose")?;
        let program = Program::foreign(program).args(first).args(arguments);
        self.environment.iter().fold(program, |program, (name, value)| program.env(name, value)).start().await
    }

    /// Runs a compose command to its end.
    ///
    /// # Errors
    /// If it fails or takes longer than `limit`, with its output.
    pub async fn finish(&self, arguments: &[&str], limit: Duration) -> Result<Ended> {
        let ended = self.start(arguments).await?.ended_within(limit).await?;
        ensure!(ended.code == Some(0), "{arguments:?}: {}", ended.stderr.join("\n"));
        Ok(ended)
    }

    /// The URL of a path on the published port that this variable of the compose file sets.
    #[must_use]
    pub fn url(&self, port: &str, path: &str) -> String {
        let port = self.environment.iter().find(|(name, _)| name == port).map_or("", |(_, port)| port);
        format!("http://127.0.0.1:{port}{path}")
    }

    /// The containers of a service, running and stopped ones.
    pub async fn containers(&self, service: &str) -> Result<Vec<Container>> {
        let labels = [("project", self.project.as_str()), ("service", service), ("oneoff", "False")].map(
            |(what, value)| {
                let oneoff = format!("label=com.docker.compose.{what}={value}");
                ["--filter".to_owned(), oneoff]
            },
        );
        let arguments = ["ps", "-aq", "--no-trunc"].map(str::to_owned).into_iter();
        let arguments: Vec<_> = arguments.chain(labels.into_iter().flatten()).collect();
        let ended = run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await?;
        Ok(ended.stdout.into_iter().map(|id| Container { id }).collect())
    }

    /// Waits until `count` containers of a service have had an event, such as `health_status: healthy`, and returns the
    /// last event's attributes.
    pub async fn until(&self, service: &str, action: &str, count: usize) -> Result<Value> {
        let found = |lines: &[String]| {
            let mut seen = BTreeSet::new();
            let events = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            events
                .filter(|event| {
                    event["Action"] == action
                        && event["Actor"]["Attributes"]["com.docker.compose.service"] == service
                })
                .find(|event| seen.insert(event["id"].to_string()) && seen.len() == count)
                .map(|event| event["Actor"]["Attributes"].clone())
        };
        let what = format!("{count} of {service}: {action}");
        match self.events.stdout().until(&what, found).await {
            Ok(attributes) => Ok(attributes),
            Err(error) => {
                let mut states = Vec::new();
                for container in self.containers(service).await? {
                    states.push((container.inspect().await?["State"].clone(), container.log().await?));
                }
                Err(error.context(format!("{what}: {states:#?}")))
            }
        }
    }
}

/// Puts what the stage `built` of `deploy/Dockerfile` copies into `target/programs`: the programs without debug
/// information, which is most of their size, and this machine's certificates.
async fn provide_programs() -> Result<()> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/programs"));
    tokio::fs::create_dir_all(folder).await?;
    // The test needs none of them, and a minimal machine has none.
    let certificates = tokio::fs::read("/etc/ssl/certs/ca-certificates.crt").await.unwrap_or_default();
    tokio::fs::write(folder.join("ca-certificates.crt"), certificates).await?;
    for name in ["garenne", "garenne-producer", "garenne-worker"] {
        let (program, copy) = (binary(name).await?, folder.join(name));
        let strip = Program::foreign("strip").arg("--strip-debug").option("-o", copy).arg(program);
        let ended = strip.start().await?.ended_within(BUILD).await?;
        ensure!(ended.code == Some(0), "strip: {}", ended.stderr.join("\n"));
    }
    Ok(())
}

/// A container of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    id: String,
}

impl Container {
    /// Sends SIGKILL to its main process.
    pub async fn kill(&self) -> Result<()> {
        run(&["kill", "-s", "KILL", &self.id]).await.map(drop)
    }

    /// The engine's description of it (`docker inspect`).
    pub async fn inspect(&self) -> Result<Value> {
        let all: Value = serde_json::from_str(&run(&["inspect", &self.id]).await?.stdout.join("\n"))?;
        Ok(all[0].clone())
    }

    /// Runs a command in it and returns its standard output.
    ///
    /// # Errors
    /// If it fails, with its standard error.
    pub async fn exec(&self, command: &[&str]) -> Result<Vec<String>> {
        let arguments: Vec<_> = ["exec", &self.id].iter().chain(command).copied().collect();
        Ok(run(&arguments).await?.stdout)
    }

    /// Its output (`docker logs`).
    pub async fn log(&self) -> Result<Ended> {
        run(&["logs", &self.id]).await
    }
}

async fn run(arguments: &[&str]) -> Result<Ended> {
    let ended = docker(arguments).run().await?;
    ensure!(ended.code == Some(0), "docker {arguments:?}: {}", ended.stderr.join("\n"));
    Ok(ended)
}

fn docker(arguments: &[&str]) -> Program {
    Program::foreign("docker").args(arguments)
}
