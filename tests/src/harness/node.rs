//! One server as a container or a process, with the same operations: start, stop, kill, pause.

mod container;
mod process;

use anyhow::{Result, bail};

use self::{container::ContainerNode, process::ProcessNode};
use super::engine::{ImageName, Mode};

/// The configuration of a server.
#[derive(Clone, Debug)]
pub(crate) struct NodeSpec {
    /// The name of the image's folder and of the process's script.
    pub(crate) service: &'static str,
    /// Image for a container.
    pub(crate) image: ImageName,
    /// The log line after which a container is ready.
    pub(crate) ready: &'static str,
    /// Environment variables of the server.
    pub(crate) environment: Vec<(&'static str, String)>,
    /// Files that are written before the first start.
    pub(crate) files: Vec<NodeFile>,
    /// Ports on the loopback interface: (the host's, the container's). The script gets the host's ports, in order.
    pub(crate) ports: Vec<(u16, u16)>,
    /// Its network and host name, if it is a member of a cluster. Only for containers.
    pub(crate) member: Option<ClusterMember>,
}

/// A container's network and name in a cluster.
#[derive(Clone, Debug)]
pub(crate) struct ClusterMember {
    /// The network, which is removed with its last container.
    pub(crate) network: String,
    /// The container's name in the network, and its host name.
    pub(crate) host: String,
}

/// A configuration file and its path in each mode.
#[derive(Clone, Debug)]
pub(crate) struct NodeFile {
    /// Absolute path in a container.
    pub(crate) in_container: &'static str,
    /// Name in a process's folder; `None` if the process's script writes the file itself.
    pub(crate) in_folder: Option<&'static str>,
    /// The file's text.
    pub(crate) content: String,
}

/// A server that was started and may have been stopped since. When the value is dropped, the server is removed with its
/// data; the drop must run on the harness's runtime.
#[derive(Debug)]
pub(crate) enum Node {
    Container(Box<ContainerNode>),
    Process(ProcessNode),
}

impl Node {
    /// Starts a server. A container has logged that it is ready at the return; a process may still be starting.
    pub(crate) async fn launch(mode: Mode, spec: NodeSpec) -> Result<Self> {
        Ok(match mode {
            Mode::Docker => Self::Container(Box::new(ContainerNode::launch(spec).await?)),
            Mode::Process => Self::Process(ProcessNode::launch(&spec)?),
        })
    }

    /// Sends SIGKILL; returns when the process has ended.
    pub(crate) async fn kill(&self) -> Result<()> {
        match self {
            Self::Container(node) => node.kill().await,
            Self::Process(node) => node.kill(),
        }
    }

    /// Stops it cleanly; returns when the process has ended.
    pub(crate) async fn stop(&self) -> Result<()> {
        match self {
            Self::Container(node) => node.stop().await,
            Self::Process(node) => node.stop().await,
        }
    }

    /// Starts it again with the same data and ports. It may not answer yet at the return.
    pub(crate) async fn start(&self) -> Result<()> {
        match self {
            Self::Container(node) => node.start().await,
            Self::Process(node) => node.start(),
        }
    }

    /// Freezes it: connections stay open and nothing answers.
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

    /// Fails if the server has ended by itself, with the end of its log.
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

/// Returns the output of a control command, or an error with the output if it failed.
fn checked(arguments: &[&str], success: bool, output: String) -> Result<String> {
    if !success {
        bail!("`{}` failed: {}", arguments.join(" "), output.trim());
    }
    Ok(output)
}
