//! A real Celery application beside the fleet.

use std::{path::PathBuf, sync::OnceLock};

use anyhow::{Context, Result};
use serde_json::Value;
use tokio::sync::Mutex;

use super::{
    handler::repository_file,
    process::{Process, Program},
    suite,
    test_env::TestEnv,
};

/// The folder of the application.
const APP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/celery");

/// Whether Celery is installed. Held while it is.
static INSTALLED: Mutex<()> = Mutex::const_new(());
/// Why it cannot be installed.
static PROBLEM: OnceLock<String> = OnceLock::new();

/// A Celery application on a scenario's virtual host.
#[derive(Clone, Debug)]
pub struct Celery {
    python: PathBuf,
    environment: Vec<(String, String)>,
}

impl Celery {
    /// The application, with Celery as PyPI has it. [`None`] if it cannot be installed: then the test is left out and says
    /// why.
    pub async fn new(env: &TestEnv) -> Result<Option<Self>> {
        let python = match install().await {
            Ok(python) => python,
            Err(problem) => {
                suite::leave_out(format_args!("Celery cannot be installed from PyPI: {problem:#}"));
                return Ok(None);
            }
        };
        let broker = ("PROJ_BROKER".to_owned(), env.vhost().amqp_url());
        Ok(Some(Self { python, environment: vec![broker] }))
    }

    /// Configures it.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The settings of a handler that runs this task of the application in its own Python, without a worker of Celery.
    pub fn handler(&self, kind: &str, function: &str) -> String {
        let (python, sdk) = (&self.python, repository_file("sdk/python/src"));
        let (sdk, environment) = (sdk.display(), self.environment.iter());
        let environment: String = environment.map(|(name, value)| format!(", {name} = {value:?}")).collect();
        format!(
            "[handlers.{kind:?}]\ncommand = [{python:?}, \"-m\", \"garenne\", {function:?}]\nprocesses = 1\n\
             environment = {{ PYTHONPATH = \"{sdk}:{APP}\"{environment} }}\n"
        )
    }

    fn program(&self) -> Program {
        let program = Program::foreign(&self.python.display().to_string());
        let program = program.env("PYTHONPATH", APP).env("PYTHONDONTWRITEBYTECODE", "1");
        self.environment.iter().fold(program, |program, (name, value)| program.env(name, value))
    }

    /// Sends calls with the application's script. Returns what it reports: a name, a result, and the seconds until then.
    pub async fn send(&self, arguments: &[&str]) -> Result<Vec<(String, Value, f64)>> {
        let ended = self.program().arg(format!("{APP}/send.py")).args(arguments).run().await?;
        anyhow::ensure!(ended.code == Some(0), "send.py {arguments:?}: {:#?}", ended.stderr);
        let read = |line: &String| serde_json::from_str(line).with_context(|| line.clone());
        ended.stdout.iter().map(read).collect()
    }

    /// Starts a worker of Celery on this queue and waits until it consumes.
    pub async fn worker(&self, queue: &str) -> Result<Process> {
        let arguments = ["-m", "celery", "-A", "proj", "worker", "--pool", "solo", "-l", "INFO", "-Q", queue];
        let worker = self.program().args(arguments).start().await?;
        let is_ready = |lines: &[String]| lines.iter().any(|line| line.ends_with(" ready.")).then_some(());
        worker.stderr().until("a worker of Celery that is ready", is_ready).await?;
        Ok(worker)
    }
}

/// Installs Celery into a virtual environment of Python in the target folder, once for all runs.
async fn install() -> Result<PathBuf> {
    let _installing = INSTALLED.lock().await;
    if let Some(problem) = PROBLEM.get() {
        anyhow::bail!("{problem}");
    }
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/celery-python"));
    let (python, complete) = (folder.join("bin/python"), folder.join("complete"));
    let requirements = format!("{APP}/requirements.txt");
    let wanted = std::fs::read_to_string(&requirements)?;
    if std::fs::read_to_string(&complete).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    let venv = Program::foreign("python3").arg("-m").arg("venv").arg(&folder);
    let pip = Program::foreign(&python.display().to_string());
    let pip = pip.args(["-m", "pip", "install", "-q", "-r", &requirements]);
    for step in [venv, pip] {
        let ended = step.run().await?;
        if ended.code != Some(0) {
            let problem = [ended.stdout, ended.stderr].concat().join("; ");
            let _ = PROBLEM.set(problem.clone());
            anyhow::bail!("{problem}");
        }
    }
    std::fs::write(complete, wanted)?;
    Ok(python)
}
