//! The library of Garenne's integration tests: real brokers and databases, faults, and checks of documentation and
//! source files. The scenarios are in `tests/scenarios/`.

#[cfg(test)]
mod deny;
#[cfg(test)]
mod dependencies;
#[cfg(test)]
mod determinism;
pub mod docs;
#[cfg(doctest)]
#[doc = include_str!("../../docs/guides/handlers.md")]
mod handlers_guide {}
pub mod harness;
#[cfg(test)]
mod imports;
#[cfg(test)]
mod links;
#[cfg(test)]
mod settings;
#[cfg(test)]
mod sources;
#[cfg(test)]
mod spawns;
#[cfg(test)]
mod workspace;
