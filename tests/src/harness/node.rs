//! One server, whichever way it runs: started, stopped, killed and frozen by the same words.

mod container;
mod process;

use anyhow::{Result, bail};

use self::{container::ContainerNode, process::ProcessNode};
use super::engine::{ImageName, Mode};

/// What is to be run.
#[derive(Clone, Debug)]
pub(crate) struct NodeSpec {
    /// The image folder's and the process script's name.
    pub(crate) service: &'static str,
    /// Image for a container.
    pub(crate) image: ImageName,
    /// The log line that says that a container is ready.
    pub(crate) ready: &'static str,
    /// Environment of the server.
    pub(crate) environment: Vec<(&'static str, String)>,
    /// Files put in place before the first start.
    pub(crate) files: Vec<NodeFile>,
    /// Ports on the loopback interface: (ours, the container's). The script is given ours, in order.
    pub(crate) ports: Vec<(u16, u16)>,
    /// Where others of its kind find it; only containers have that.
    pub(crate) seat: Option<Seat>,
}

/// A container's place on a network of its own.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    /// The network, which goes with the last container on it.
    pub(crate) network: String,
    /// The container's name on it, and its host name.
    pub(crate) host: String,
}

/// A configuration file, with its place in either mode.
#[derive(Clone, Debug)]
pub(crate) struct NodeFile {
    /// Absolute path in a container.
    pub(crate) in_container: &'static str,
    /// Name in a process's folder; `None` where the process script writes it by itself.
    pub(crate) in_folder: Option<&'static str>,
    /// The file's text.
    pub(crate) content: String,
}

/// A server that was started once, and may be down now. Dropped, it is removed with all its data; that
/// has to be on the harness's runtime.
#[derive(Debug)]
pub(crate) enum Node {
    Container(Box<ContainerNode>),
    Process(ProcessNode),
}

impl Node {
    /// Starts a server. A container has logged that it is ready; a process may still be starting.
    pub(crate) async fn launch(mode: Mode, spec: NodeSpec) -> Result<Self> {
        Ok(match mode {
            Mode::Docker => Self::Container(Box::new(ContainerNode::launch(spec).await?)),
            Mode::Process => Self::Process(ProcessNode::launch(&spec)?),
        })
    }

    /// SIGKILL; returns when the process is gone.
    pub(crate) async fn kill(&self) -> Result<()> {
        match self {
            Self::Container(node) => node.kill().await,
            Self::Process(node) => node.kill(),
        }
    }

    /// An orderly stop; returns when the process is gone.
    pub(crate) async fn stop(&self) -> Result<()> {
        match self {
            Self::Container(node) => node.stop().await,
            Self::Process(node) => node.stop().await,
        }
    }

    /// Starts it again, on the same data and ports. It may not answer yet.
    pub(crate) async fn start(&self) -> Result<()> {
        match self {
            Self::Container(node) => node.start().await,
            Self::Process(node) => node.start(),
        }
    }

    /// Freezes it: connections stay open, nothing answers.
    pub(crate) async fn pause(&self) -> Result<()> {
        match self {
            Self::Container(node) => node.pause().await,
            Self::Process(node) => node.pause(),
        }
    }

    /// Ends a pause.
    pub(crate) async fn unpause(&self) -> Result<()> {
        match self {
            Self::Container(node) => node.unpause().await,
            Self::Process(node) => node.unpause(),
        }
    }

    /// Runs the server's control command and returns what it printed.
    pub(crate) async fn control(&self, command: &str, arguments: &[&str]) -> Result<String> {
        match self {
            Self::Container(node) => node.control(command, arguments).await,
            Self::Process(node) => node.control(arguments).await,
        }
    }

    /// Fails when the server has ended by itself, with the end of its log.
    pub(crate) fn check_alive(&self) -> Result<()> {
        match self {
            Self::Container(_) => Ok(()),
            Self::Process(node) => node.check_alive(),
        }
    }

    /// The end of the server's log.
    pub(crate) async fn log(&self) -> String {
        match self {
            Self::Container(node) => node.log().await,
            Self::Process(node) => node.log(),
        }
    }
}

/// The last lines of a log, for an error message.
fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

/// Turns a control command's end into its output or an error that shows it.
fn checked(arguments: &[&str], success: bool, output: String) -> Result<String> {
    if !success {
        bail!("`{}` failed: {}", arguments.join(" "), output.trim());
    }
    Ok(output)
}
