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
    let folders: Vec<_> =
        folders.filter(|folder| !folder.starts_with("tests") && !folder.starts_with("examples")).collect();
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

#[test]
fn each_published_crate_has_licences_and_a_readme() {
    let is_published = |folder: &String| {
        let package = &manifest(folder)["package"];
        package.get("publish").and_then(toml::Value::as_bool) == Some(true)
    };
    let published: Vec<_> = product_crates().into_iter().filter(is_published).collect();
    assert!(published.len() >= 5, "{published:?}");
    for folder in published {
        let path = format!("{folder}/Cargo.toml");
        let listed = cargo(&["package", "--list", "--offline", "--allow-dirty", "--manifest-path", &path]);
        let listed = String::from_utf8(listed).unwrap();
        for file in ["LICENSE-APACHE", "LICENSE-MIT", "README.md"] {
            assert!(
                listed.lines().any(|line| line == file),
                "{folder} is published without {file}: {listed}"
            );
        }
        for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
            let text = |folder: &str| fs::read_to_string(repository().join(folder).join(licence)).unwrap();
            assert_eq!(text(&folder), text("."), "{folder}/{licence}");
        }
        let readme = fs::read_to_string(repository().join(&folder).join("README.md")).unwrap();
        let minimum = manifest(".")["workspace"]["package"]["rust-version"].as_str().unwrap().to_owned();
        assert!(
            readme.contains(&format!("Rust {minimum} or newer")),
            "{folder}/README.md states another version"
        );
    }
}
