//! Decides whether servers run in containers or as processes, and selects the images.

use std::env;

use testcontainers::core::client::docker_client_instance;
use tokio::sync::OnceCell;

use super::runtime::on_harness;

/// The default RabbitMQ series, the same as in `./dev`.
const DEFAULT_RABBITMQ: &str = "4.0";
const DEFAULT_POSTGRES: &str = "17";

/// How the harness runs servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In containers.
    Docker,
    /// As processes, from Debian's packages.
    Process,
}

/// The mode of this test run.
///
/// `GARENNE_TEST_MODE` (`docker` or `process`) takes precedence, then `GARENNE_NO_DOCKER`. Without both, it depends on
/// whether a Docker engine answers.
pub async fn mode() -> Mode {
    static MODE: OnceCell<Mode> = OnceCell::const_new();
    *MODE.get_or_init(find_mode).await
}

async fn find_mode() -> Mode {
    match env::var("GARENNE_TEST_MODE").as_deref() {
        Ok("docker") => return Mode::Docker,
        Ok("process") => return Mode::Process,
        Ok(other) if !other.is_empty() => {
            panic!("GARENNE_TEST_MODE is `{other}`; expected `docker` or `process`")
        }
        _ => {}
    }
    if env::var_os("GARENNE_NO_DOCKER").is_some_and(|value| !value.is_empty()) {
        return Mode::Process;
    }
    let answers = on_harness(async {
        match docker_client_instance().await {
            Ok(docker) => docker.ping().await.is_ok(),
            Err(_) => false,
        }
    });
    if answers.await { Mode::Docker } else { Mode::Process }
}

/// An image: name and tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImageName {
    pub(crate) name: String,
    pub(crate) tag: String,
}

impl ImageName {
    fn parse(text: &str) -> Self {
        // A colon before the last slash belongs to a registry's port.
        match text.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => Self { name: name.to_owned(), tag: tag.to_owned() },
            _ => Self { name: text.to_owned(), tag: "latest".to_owned() },
        }
    }
}

/// The broker image: `GARENNE_TEST_RABBITMQ_IMAGE`, else one that `./dev` built, else the official one.
pub(crate) async fn rabbitmq_image() -> ImageName {
    let version = env::var("RABBITMQ_VERSION").unwrap_or_else(|_| DEFAULT_RABBITMQ.to_owned());
    choose_image("GARENNE_TEST_RABBITMQ_IMAGE", "rabbitmq", &format!("{version}-management")).await
}

/// The database image: `GARENNE_TEST_POSTGRES_IMAGE`, else one that `./dev` built, else the official one.
pub(crate) async fn postgres_image() -> ImageName {
    choose_image("GARENNE_TEST_POSTGRES_IMAGE", "postgres", DEFAULT_POSTGRES).await
}

async fn choose_image(variable: &str, service: &str, tag: &str) -> ImageName {
    if let Ok(asked) = env::var(variable) {
        return ImageName::parse(&asked);
    }
    let local = format!("garenne/{service}");
    let found = {
        let reference = format!("{local}:{tag}");
        on_harness(async move { has_image(&reference).await }).await
    };
    ImageName { name: if found { local } else { service.to_owned() }, tag: tag.to_owned() }
}

async fn has_image(reference: &str) -> bool {
    match docker_client_instance().await {
        Ok(docker) => docker.inspect_image(reference).await.is_ok(),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::ImageName;

    fn image(name: &str, tag: &str) -> ImageName {
        ImageName { name: name.to_owned(), tag: tag.to_owned() }
    }

    #[test]
    fn a_registry_port_is_not_a_tag() {
        assert_eq!(ImageName::parse("rabbitmq:4.0"), image("rabbitmq", "4.0"));
        assert_eq!(ImageName::parse("localhost:5000/rabbitmq"), image("localhost:5000/rabbitmq", "latest"));
        assert_eq!(ImageName::parse("localhost:5000/rabbitmq:4.3"), image("localhost:5000/rabbitmq", "4.3"));
    }
}
