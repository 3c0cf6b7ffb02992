//! A server in a container.

use std::{collections::HashMap, time::Duration};

use anyhow::{Context, Result};
use futures_util::TryStreamExt;
use testcontainers::{
    ContainerAsync, ContainerRequest, GenericImage, ImageExt,
    bollard::{
        exec::StartExecResults,
        models::{ExecConfig, PortBinding},
        query_parameters::KillContainerOptionsBuilder,
    },
    core::{IntoContainerPort, WaitFor, client::docker_client_instance},
    runners::AsyncRunner,
};
use uuid::Uuid;

use super::{NodeSpec, checked, tail};
use crate::harness::cleanup::CleanupShell;

/// Timeout of a start. It takes a few seconds on a busy machine with two cores; the pull of an image does not count.
const STARTUP: Duration = Duration::from_secs(120);

/// Most attempts to freeze a container. Each takes up to some seconds.
const PAUSE_ATTEMPTS: u32 = 5;

#[derive(Debug)]
pub(crate) struct ContainerNode {
    container: ContainerAsync<GenericImage>,
    // Dropped after the container, which normally removes itself.
    _cleanup: CleanupShell,
}

impl ContainerNode {
    pub(crate) async fn launch(spec: NodeSpec) -> Result<Self> {
        let name = match &spec.member {
            Some(member) => member.host.clone(),
            None => format!("garenne-test-{}-{}", spec.service, Uuid::new_v4().simple()),
        };
        // Started before the container, so that the container is removed in every case.
        let cleanup = CleanupShell::start(r#"docker rm --force --volumes "$1""#, &[&name])?;
        let image = format!("{}:{}", spec.image.name, spec.image.tag);
        let container = request(spec, &name).start().await.with_context(|| {
            format!(
                "container image {image} does not start; if no registry is reachable, \
                 build the image with `./dev images`"
            )
        })?;
        Ok(Self { container, _cleanup: cleanup })
    }

    pub(crate) async fn kill(&self) -> Result<()> {
        let docker = docker_client_instance().await?;
        let options = KillContainerOptionsBuilder::new().signal("SIGKILL").build();
        docker.kill_container(self.container.id(), Some(options)).await?;
        // The engine answers when it has sent the signal. A stop waits for the container's end.
        self.container.stop_with_timeout(Some(0)).await?;
        Ok(())
    }

    pub(crate) async fn stop(&self) -> Result<()> {
        Ok(self.container.stop_with_timeout(Some(60)).await?)
    }

    pub(crate) async fn start(&self) -> Result<()> {
        Ok(self.container.start().await?)
    }

    /// Freezes it. On a busy machine, the engine gives up ("unable to freeze") before all processes are frozen, and
    /// thaws them again.
    pub(crate) async fn pause(&self) -> Result<()> {
        for _ in 1..PAUSE_ATTEMPTS {
            match self.container.pause().await {
                Ok(()) => return Ok(()),
                Err(error) => eprintln!("pausing {}: {error}; trying again", self.container.id()),
            }
        }
        Ok(self.container.pause().await?)
    }

    pub(crate) async fn unpause(&self) -> Result<()> {
        Ok(self.container.unpause().await?)
    }

    pub(crate) async fn control(&self, command: &str, arguments: &[&str]) -> Result<String> {
        let docker = docker_client_instance().await?;
        let whole = std::iter::once(command).chain(arguments.iter().copied()).map(str::to_owned);
        let config = ExecConfig {
            cmd: Some(whole.collect()),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            ..ExecConfig::default()
        };
        let exec = docker.create_exec(self.container.id(), config).await?.id;
        let mut text = String::new();
        if let StartExecResults::Attached { mut output, .. } = docker.start_exec(&exec, None).await? {
            while let Some(part) = output.try_next().await? {
                text.push_str(&part.to_string());
            }
        }
        let success = docker.inspect_exec(&exec).await?.exit_code == Some(0);
        checked(arguments, success, text)
    }

    pub(crate) async fn log(&self) -> String {
        let bytes = self.container.stdout_to_vec().await.unwrap_or_default();
        tail(&String::from_utf8_lossy(&bytes))
    }
}

fn request(spec: NodeSpec, name: &str) -> ContainerRequest<GenericImage> {
    let mut image = GenericImage::new(spec.image.name, spec.image.tag)
        .with_wait_for(WaitFor::message_on_either_std(spec.ready));
    for (_, inside) in &spec.ports {
        image = image.with_exposed_port(inside.tcp());
    }
    let mut request = image.with_container_name(name).with_startup_timeout(STARTUP);
    if let Some(member) = spec.member {
        request = request.with_network(member.network).with_hostname(member.host);
    }
    for (variable, value) in spec.environment {
        request = request.with_env_var(variable, value);
    }
    for file in spec.files {
        request = request.with_copy_to(file.in_container, file.content.into_bytes());
    }
    // The engine would choose other ports after each start. The ports are reachable only from this machine.
    let bindings: HashMap<_, _> = spec
        .ports
        .iter()
        .map(|(ours, inside)| {
            let binding =
                PortBinding { host_ip: Some("127.0.0.1".to_owned()), host_port: Some(ours.to_string()) };
            (format!("{inside}/tcp"), Some(vec![binding]))
        })
        .collect();
    request.with_host_config_modifier(move |host| {
        host.publish_all_ports = Some(false);
        host.port_bindings = Some(bindings.clone());
    })
}
