//! Builds the workspace's binaries, so that no test runs an outdated one.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use tokio::{process::Command, sync::OnceCell};

/// The path of a binary.
pub(in crate::harness) async fn binary(name: &str) -> Result<PathBuf> {
    let path = binaries().await?.join(name);
    ensure!(path.exists(), "{} does not exist", path.display());
    Ok(path)
}

/// The folder of the workspace's binaries. The first call builds them.
pub async fn binaries() -> Result<&'static Path> {
    static FOLDER: OnceCell<PathBuf> = OnceCell::const_new();
    FOLDER.get_or_try_init(build).await.map(PathBuf::as_path)
}

/// The path of a binary with release optimizations, for measurements. Each call builds it.
pub(super) async fn release_binary(name: &str) -> Result<PathBuf> {
    let target = test_folder()?.parent().context("no target folder")?.to_owned();
    cargo_build(&["--release", "--bin", name], &target).await?;
    Ok(target.join("release").join(name))
}

/// Builds the binaries with the profile of this test and returns their folder. With `GARENNE_TEST_BINARIES` nothing is
/// built: it names a folder with binaries.
async fn build() -> Result<PathBuf> {
    if let Some(folder) = env::var_os("GARENNE_TEST_BINARIES") {
        return Ok(folder.into());
    }
    let folder = test_folder()?;
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(other) => other,
    };
    // The same selection as `./dev` and `cargo test`. Without the tests, cargo would enable fewer features of the dependencies,
    // and build them and the workspace once more.
    let selection = ["--workspace", "--bins", "--tests", "--examples", "--profile", profile];
    cargo_build(&selection, folder.parent().context("no target folder")?).await?;
    Ok(folder)
}

/// `<target>/<profile>`: this test is `<target>/<profile>/deps/<name>-<hash>`.
fn test_folder() -> Result<PathBuf> {
    let test = env::current_exe()?;
    Ok(test.ancestors().nth(2).context("the test binary is in no target folder")?.to_owned())
}

async fn cargo_build(selection: &[&str], target: &Path) -> Result<()> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Variables that cargo sets for this test would make some build scripts run again.
    for (name, _) in env::vars_os() {
        let prefixes = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_"];
        if prefixes.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            cargo.env_remove(name);
        }
    }
    let output = cargo
        .args(["build", "--quiet"])
        .args(selection)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .env("CARGO_TARGET_DIR", target)
        .output()
        .await?;
    ensure!(output.status.success(), "cargo build failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
