//! Builds the workspace's binaries, so that no test runs an old one.

use std::{env, path::PathBuf};

use anyhow::{Context, Result, ensure};
use tokio::{process::Command, sync::OnceCell};

/// The path of a binary. The first call builds all of the workspace's.
pub(super) async fn binary(name: &str) -> Result<PathBuf> {
    static FOLDER: OnceCell<PathBuf> = OnceCell::const_new();
    let path = FOLDER.get_or_try_init(build).await?.join(name);
    ensure!(path.exists(), "there is no {}", path.display());
    Ok(path)
}

/// Builds the binaries with the profile of this test and returns their folder. With `GARENNE_TEST_BINARIES` nothing is
/// built: it names a folder with binaries.
async fn build() -> Result<PathBuf> {
    if let Some(folder) = env::var_os("GARENNE_TEST_BINARIES") {
        return Ok(folder.into());
    }
    // This test is `<target>/<profile>/deps/<name>-<hash>`.
    let test = env::current_exe()?;
    let folder = test.ancestors().nth(2).context("the test binary is in no target folder")?;
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(other) => other,
    };
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Variables that cargo sets for this test: they would make some build scripts run again.
    for (name, _) in env::vars_os() {
        let told = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_"];
        if told.iter().any(|told| name.to_string_lossy().starts_with(told)) {
            cargo.env_remove(name);
        }
    }
    // The same selection as `./dev`: another one would build dependencies again with other features.
    let output = cargo
        .args(["build", "--quiet", "--workspace", "--bins", "--profile", profile])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .env("CARGO_TARGET_DIR", folder.parent().context("no target folder")?)
        .output()
        .await?;
    ensure!(output.status.success(), "cargo build failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(folder.to_owned())
}
