//! The crates of the workspace, and what cargo says of them.

use std::{env, fs, process::Command};

use crate::docs::repository;

/// The manifest in a folder of the repository.
pub(crate) fn manifest(folder: &str) -> toml::Table {
    fs::read_to_string(repository().join(folder).join("Cargo.toml")).unwrap().parse().unwrap()
}

/// The folders of the product's crates.
pub(crate) fn product_crates() -> Vec<String> {
    let workspace = manifest(".");
    let members = workspace["workspace"]["members"].as_array().unwrap();
    let folders = members.iter().map(|member| member.as_str().unwrap().to_owned());
    let folders: Vec<_> = folders.filter(|folder| !folder.starts_with("tests")).collect();
    assert!(folders.len() > 15, "{folders:?}");
    folders
}

/// What cargo prints.
pub(crate) fn cargo(arguments: &[&str]) -> Vec<u8> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo).args(arguments).current_dir(repository()).output();
    let output = output.expect("cargo can be run");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}
