//! Prepares a run of the chaos engine, for `demo` and `drill`.

use std::{ffi::OsString, path::Path};

use garenne_chaos::{Launcher, WorkerCommand};
use garenne_common::exit::Failure;
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
    let mut settings = vec![
        ("GARENNE_AMQP_URL", common.amqp_url.expose().to_owned()),
        ("GARENNE_PREFIX", common.prefix.clone()),
    ];
    let postgres = operator.settings.postgres_url.as_ref();
    settings.extend(postgres.map(|url| ("GARENNE_POSTGRES_URL", url.expose().to_owned())));
    settings.extend(config.map(|path| ("GARENNE_CONFIG", path.display().to_string())));
    launcher.environment = settings.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    Ok(launcher)
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
