//! Checks the dependencies of a worker that uses only the library, and those that ARCHITECTURE.md names.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use crate::{
    docs::{markdown::tables, repository},
    workspace::{cargo, manifest, product_crates},
};

/// The crates that `package` depends on with these arguments, tests and benchmarks left out.
fn dependencies(package: &str, arguments: &[&str]) -> BTreeSet<String> {
    let all = ["tree", "--package", package, "--edges", "normal", "--prefix", "none", "--format", "{lib}"];
    let printed = String::from_utf8(cargo(&[&all[..], arguments].concat())).unwrap();
    printed.lines().map(str::to_owned).collect()
}

#[test]
fn the_library_compiles_neither_sensor_kinds_nor_postgres() {
    let library = dependencies("garenne", &[]);
    assert!(library.contains("garenne_pool") && library.contains("lapin"), "{library:?}");
    for absent in ["garenne_sensors", "garenne_postgres", "realfft", "tokio_postgres"] {
        assert!(!library.contains(absent), "{absent}");
    }
    let stock = dependencies("garenne-worker", &[]);
    assert!(stock.contains("realfft") && stock.contains("tokio_postgres"), "the names are the crates' own");
}

#[test]
fn each_feature_of_the_library_compiles_only_what_it_needs() {
    let with = |features| dependencies("garenne", &["--no-default-features", "--features", features]);
    // A feature and a crate that is compiled for it alone.
    let own = [
        ("admin", "axum"),
        ("cli", "clap"),
        ("otlp", "opentelemetry_sdk"),
        ("otlp", "opentelemetry_otlp"),
        ("tls", "rustls_native_certs"),
        ("worker", "garenne_pool"),
    ];
    for (feature, library) in own {
        assert!(with(feature).contains(library), "{feature} without {library}");
    }
    for (feature, absent) in [("client", &own[..]), ("worker", &own[..5])] {
        let compiled = with(feature);
        for (_, library) in absent {
            assert!(!compiled.contains(*library), "{feature} compiles {library}");
        }
    }
}

/// The library's features as programs name them, and the most crates that each compiles, procedural macros and those of
/// build scripts included. Somebody who adds the library to a program waits for all of them.
const MOST_CRATES: [(&str, usize); 4] =
    [("client", 95), ("worker", 122), ("client,worker", 122), ("worker,cli", 138)];

#[test]
fn the_library_compiles_no_more_crates_than_stated() {
    for (features, most) in MOST_CRATES {
        let arguments = ["--no-default-features", "--features", features, "--edges", "normal,build"];
        let all = ["tree", "--offline", "--package", "garenne", "--prefix", "none", "--format", "{p}"];
        let printed = String::from_utf8(cargo(&[&all[..], &arguments].concat())).unwrap();
        let crates: BTreeSet<_> = printed.lines().map(|line| line.trim_end_matches(" (*)")).collect();
        assert!(crates.iter().any(|it| it.starts_with("lapin ")), "{crates:?}");
        assert!(
            crates.len() <= most,
            "{features} compiles {} crates, {most} are allowed: {crates:#?}",
            crates.len()
        );
    }
}

/// The heading above the table of ARCHITECTURE.md with the dependencies.
const DEPENDENCIES: &str = "Dependencies between crates";

/// The crates of the programs, and their dependencies on crates of the workspace. Those of the tests are left out.
fn dependencies_by_crate() -> BTreeMap<String, BTreeSet<String>> {
    let manifests: Vec<_> = product_crates().iter().map(|folder| manifest(folder)).collect();
    let name = |manifest: &toml::Table| manifest["package"]["name"].as_str().unwrap().to_owned();
    let own: BTreeSet<String> = manifests.iter().map(name).collect();
    let of = |manifest: &toml::Table| {
        let all =
            manifest.get("dependencies").and_then(|it| it.as_table()).into_iter().flat_map(|it| it.keys());
        all.filter(|it| own.contains(*it)).cloned().collect()
    };
    manifests.iter().map(|manifest| (name(manifest), of(manifest))).collect()
}

#[test]
fn the_architecture_page_names_the_dependencies_between_crates() {
    let page = fs::read_to_string(repository().join("ARCHITECTURE.md")).unwrap();
    let table = tables(&page).into_iter().find(|table| table.heading == DEPENDENCIES).expect("the table");
    let named: BTreeMap<String, BTreeSet<String>> =
        table.code[1..].iter().map(|row| (row[0][0].clone(), row[1].iter().cloned().collect())).collect();
    let mut actual = dependencies_by_crate();
    assert!(actual.len() > 15, "{:?}", actual.keys());
    for dependencies in actual.values_mut() {
        dependencies.retain(|it| !["garenne-common", "garenne-protocol"].contains(&it.as_str()));
    }
    assert_eq!(named, actual);
}
