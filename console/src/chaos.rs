//! Prepares a run of the chaos engine, for `demo` and `drill`.

use std::{ffi::OsString, path::Path};

use garenne_chaos::{Launcher, WorkerCommand};
use garenne_common::{config::SecretUrl, exit::Failure};
use garenne_protocol::topology::BrokerVersion;

use crate::operator::Operator;

/// Creates what is missing on the broker, and returns its version.
///
/// # Errors
/// If the broker cannot be reached, or an exchange or queue differs.
pub(crate) async fn ensure_topology(operator: &Operator) -> Result<BrokerVersion, Failure> {
    let connection = operator.connect().await?;
    let version = operator.broker.version().await?;
    let ensured = garenne_amqp::declare::ensure(&connection, &operator.topology(version)).await;
    Operator::leave(connection).await;
    ensured?;
    Ok(version)
}

/// A launcher whose processes get the console's settings. They are passed in the environment: other users of the
/// machine can read a command line, and with it a password.
///
/// # Errors
/// If the path of this executable is unknown.
pub(crate) fn launcher(operator: &Operator, dir: &Path, config: Option<&Path>) -> anyhow::Result<Launcher> {
    let mut launcher = Launcher::new(std::env::current_exe()?, dir.to_owned());
    let common = &operator.settings.common;
    launcher.environment = vec![
        url_variable("GARENNE_AMQP_URL", &common.amqp_url),
        ("GARENNE_PREFIX".to_owned(), common.prefix.clone().into()),
    ];
    let postgres = operator.settings.postgres_url.as_ref();
    launcher.environment.extend(postgres.map(|url| url_variable("GARENNE_POSTGRES_URL", url)));
    launcher.environment.extend(config.map(|path| ("GARENNE_CONFIG".to_owned(), path.into())));
    Ok(launcher)
}

/// The variable that gives a process this URL: the file that it came from, so that the process reads a changed password
/// too, or the URL itself.
pub(crate) fn url_variable(name: &str, url: &SecretUrl) -> (String, OsString) {
    match url.file() {
        Some(file) => (format!("{name}_FILE"), file.into()),
        None => (name.to_owned(), url.expose().into()),
    }
}

/// `garenne-worker` with these arguments. It stores results in Postgres if the console knows one.
pub(crate) fn stock_worker(
    operator: &Operator,
    arguments: &[&str],
    first_admin_port: Option<u16>,
) -> WorkerCommand {
    let mut all = vec!["--shutdown-mode", "soft", "--sink", "stdout"];
    if operator.settings.postgres_url.is_some() {
        all.extend(["--sink", "postgres"]);
    }
    all.extend(arguments);
    WorkerCommand::Stock { arguments: all.into_iter().map(OsString::from).collect(), first_admin_port }
}
