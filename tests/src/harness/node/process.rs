//! A server as a process group, started by its script in `deploy/process`.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process, kill_process_group},
};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::{NodeSpec, checked, tail};
use crate::harness::cleanup::CleanupShell;

/// Timeout of a clean stop, much longer than a busy broker needs.
const STOP: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct ProcessNode {
    script: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
    group: Mutex<Group>,
    folder: TempDir,
}

/// The server's process group, and the shell that ends it after the test process.
#[derive(Debug)]
struct Group {
    /// Its leader; `None` while the server is down.
    leader: Option<Child>,
    cleanup: CleanupShell,
}

impl ProcessNode {
    pub(crate) fn launch(spec: &NodeSpec) -> Result<Self> {
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy/process").join(spec.service);
        // Not in the repository: a server that drops root privileges must be able to access it.
        let folder = tempfile::Builder::new().prefix("garenne-test-").tempdir()?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        for file in &spec.files {
            if let Some(name) = file.in_folder {
                fs::write(folder.path().join(name), &file.content)?;
            }
        }
        let path = folder.path().to_str().context("the temporary folder's name is not UTF-8")?.to_owned();
        let cleanup =
            CleanupShell::start(r#"[ -z "$last" ] || kill -s KILL -- "-$last"; rm -rf "$1""#, &[&path])?;
        let mut arguments = vec!["start".to_owned(), path];
        arguments.extend(spec.ports.iter().map(|(ours, _)| ours.to_string()));
        let environment = spec.environment.clone();
        let group = Mutex::new(Group { leader: None, cleanup });
        let node = Self { script, arguments, environment, group, folder };
        node.start()?;
        Ok(node)
    }

    pub(crate) fn start(&self) -> Result<()> {
        let mut group = self.group();
        let log = fs::File::options().create(true).append(true).open(self.log_file())?;
        let leader = Command::new(&self.script)
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run {}", self.script.display()))?;
        group.cleanup.set_last(&leader.id().to_string())?;
        group.leader = Some(leader);
        Ok(())
    }

    pub(crate) fn kill(&self) -> Result<()> {
        self.group().kill()
    }

    pub(crate) async fn stop(&self) -> Result<()> {
        self.group().signal_leader(Signal::TERM)?;
        let deadline = Instant::now() + STOP;
        while self.group().running()? {
            if Instant::now() > deadline {
                bail!("the server did not stop within {STOP:?}: {}", self.log());
            }
            sleep(Duration::from_millis(20)).await;
        }
        // Ends the other processes of its group, such as the broker's epmd.
        self.kill()
    }

    pub(crate) fn pause(&self) -> Result<()> {
        self.group().signal_all(Signal::STOP)
    }

    pub(crate) fn unpause(&self) -> Result<()> {
        self.group().signal_all(Signal::CONT)
    }

    pub(crate) async fn control(&self, arguments: &[&str]) -> Result<String> {
        let output = tokio::process::Command::new(&self.script)
            .arg("ctl")
            .arg(self.folder.path())
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .await?;
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        checked(arguments, output.status.success(), text)
    }

    pub(crate) fn check_alive(&self) -> Result<()> {
        if !self.group().running()? {
            bail!("the server ended by itself: {}", self.log());
        }
        Ok(())
    }

    pub(crate) fn log(&self) -> String {
        tail(&fs::read_to_string(self.log_file()).unwrap_or_default())
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("server.log")
    }

    fn group(&self) -> MutexGuard<'_, Group> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ProcessNode {
    fn drop(&mut self) {
        // Before its folder is removed. The server may have been stopped already.
        let _ = self.kill();
    }
}

impl Group {
    fn leader(&mut self) -> Result<&mut Child> {
        self.leader.as_mut().context("the server is down")
    }

    fn running(&mut self) -> Result<bool> {
        Ok(self.leader()?.try_wait()?.is_none())
    }

    fn signal(&mut self, signal: Signal) -> Result<()> {
        Ok(kill_process_group(pid(self.leader()?)?, signal)?)
    }

    /// Signals also the descendants in other process groups: each connection to PostgreSQL has such a process. A leader
    /// that was frozen before starts no other.
    fn signal_all(&mut self, signal: Signal) -> Result<()> {
        self.signal(signal)?;
        let mut parents = vec![pid(self.leader()?)?];
        while let Some(parent) = parents.pop() {
            for child in children(parent) {
                match kill_process(child, signal) {
                    // It has ended meanwhile.
                    Ok(()) | Err(Errno::SRCH) => {}
                    Err(error) => return Err(error.into()),
                }
                parents.push(child);
            }
        }
        Ok(())
    }

    fn signal_leader(&mut self, signal: Signal) -> Result<()> {
        Ok(kill_process(pid(self.leader()?)?, signal)?)
    }

    fn kill(&mut self) -> Result<()> {
        match self.signal(Signal::KILL) {
            // The group has no processes.
            Err(error) if error.downcast_ref() == Some(&Errno::SRCH) => {}
            other => other?,
        }
        self.leader()?.wait()?;
        self.leader = None;
        // The process id may be reused from now on.
        self.cleanup.set_last("")
    }
}

/// The children of all threads of a process; none if it has ended.
fn children(parent: Pid) -> Vec<Pid> {
    let threads =
        fs::read_dir(format!("/proc/{}/task", parent.as_raw_nonzero())).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let pids = lists.flat_map(|list| list.split_whitespace().map(str::parse).collect::<Vec<_>>());
    pids.flatten().filter_map(Pid::from_raw).collect()
}

fn pid(child: &Child) -> Result<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("a process id out of range")
}
