//! Checks the packages that the programs and tests are built from by the lists of `deny.toml`: their licenses, their
//! sources, and crates that are not wanted. cargo-deny checks the same, and security advisories.

use std::{collections::BTreeSet, fs};

use serde::Deserialize;
use spdx::{Expression, ParseMode};

use crate::{docs::repository, workspace::cargo};

#[derive(Deserialize)]
struct Rules {
    graph: Graph,
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Deserialize)]
struct Licenses {
    allow: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Ban>,
}

#[derive(Deserialize)]
struct Ban {
    name: String,
    reason: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

/// What is built: [`Metadata::packages`] has those of other systems, too.
#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    license: Option<String>,
    source: Option<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    req: String,
    path: Option<String>,
}

impl Rules {
    /// What is wrong with a package.
    fn problems(&self, package: &Package) -> Vec<String> {
        let mut problems = Vec::new();
        let license = package.license.as_deref().unwrap_or_default();
        let is_allowed = Expression::parse_mode(license, ParseMode::LAX)
            .is_ok_and(|expression| expression.evaluate(|it| self.licenses.allow.contains(&it.to_string())));
        if !is_allowed {
            problems.push(format!("the license \"{license}\" is not allowed"));
        }
        match &package.source {
            Some(source) => {
                let registry = source.strip_prefix("registry+").unwrap_or(source);
                if !self.sources.allow_registry.iter().any(|allowed| allowed == registry) {
                    problems.push(format!("comes from {source}"));
                }
            }
            None => {
                let wildcards = package.dependencies.iter().filter(|it| it.req == "*" && it.path.is_none());
                problems.extend(wildcards.map(|it| format!("takes any version of {}", it.name)));
            }
        }
        let bans = self.bans.deny.iter().filter(|ban| ban.name == package.name);
        problems.extend(bans.map(|ban| ban.reason.clone()));
        problems
    }
}

fn rules() -> Rules {
    toml::from_str(&fs::read_to_string(repository().join("deny.toml")).unwrap()).unwrap()
}

#[test]
fn packages_have_allowed_licenses_and_sources() {
    let rules = rules();
    let metadata = ["metadata", "--format-version", "1", "--all-features", "--locked"].map(str::to_owned);
    let platforms = rules.graph.targets.iter().map(|target| format!("--filter-platform={target}"));
    let arguments: Vec<_> = metadata.into_iter().chain(platforms).collect();
    let printed = cargo(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let metadata: Metadata = serde_json::from_slice(&printed).unwrap();
    let built: BTreeSet<_> = metadata.resolve.nodes.into_iter().map(|node| node.id).collect();
    let packages: Vec<_> = metadata.packages.iter().filter(|package| built.contains(&package.id)).collect();
    assert!(packages.len() > 300, "{}", packages.len());
    let problems = packages.iter().flat_map(|package| {
        rules.problems(package).into_iter().map(|problem| format!("{}: {problem}", package.id))
    });
    assert_eq!(problems.collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn each_rule_refuses_a_package() {
    let rules = rules();
    let package = |license: &str, source: Option<&str>, name: &str, req: &str| {
        let dependency = Dependency { name: "other".to_owned(), req: req.to_owned(), path: None };
        rules.problems(&Package {
            id: "id".to_owned(),
            name: name.to_owned(),
            license: Some(license.to_owned()),
            source: source.map(str::to_owned),
            dependencies: vec![dependency],
        })
    };
    let crates_io = Some("registry+https://github.com/rust-lang/crates.io-index");
    for license in
        ["MIT", "MIT/Apache-2.0", "(GPL-3.0 OR MIT) AND Zlib", "Apache-2.0 WITH LLVM-exception OR GPL-2.0"]
    {
        assert_eq!(package(license, crates_io, "a", "1"), Vec::<String>::new(), "{license}");
    }
    for license in ["", "GPL-3.0", "MIT AND GPL-3.0-only", "my own"] {
        assert_eq!(package(license, crates_io, "a", "1").len(), 1, "{license}");
    }
    assert_eq!(package("MIT", Some("git+https://example.org/a"), "a", "1").len(), 1);
    assert_eq!(package("MIT", Some("registry+https://example.org/index"), "a", "1").len(), 1);
    assert_eq!(package("MIT", crates_io, "openssl-sys", "1").len(), 1);
    assert_eq!(package("MIT", None, "own", "*").len(), 1);
}
