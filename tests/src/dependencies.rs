//! Checks the dependencies of a worker that uses only the library.

use std::{collections::BTreeSet, env, process::Command};

/// The crates that `package` depends on with these arguments, tests and benchmarks left out.
fn dependencies(package: &str, arguments: &[&str]) -> BTreeSet<String> {
    let all = ["tree", "--package", package, "--edges", "normal", "--prefix", "none", "--format", "{lib}"];
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(all)
        .args(arguments)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .expect("cargo can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
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
        ("otlp", "opentelemetry_otlp"),
        ("tls", "rustls_connector"),
        ("worker", "garenne_pool"),
    ];
    for (feature, library) in own {
        assert!(with(feature).contains(library), "{feature} without {library}");
    }
    for (feature, absent) in [("client", &own[..]), ("worker", &own[..4])] {
        let compiled = with(feature);
        for (_, library) in absent {
            assert!(!compiled.contains(*library), "{feature} compiles {library}");
        }
    }
}
