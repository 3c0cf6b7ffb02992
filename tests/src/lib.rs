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
#[cfg(doctest)]
#[doc = include_str!("../../docs/library/embedding.md")]
mod embedding_page {}
#[cfg(doctest)]
#[doc = include_str!("../../docs/library/errors.md")]
mod errors_page {}
#[cfg(doctest)]
#[doc = include_str!("../../docs/library/settings.md")]
mod settings_page {}
#[cfg(doctest)]
#[doc = include_str!("../../docs/library/state.md")]
mod state_page {}
#[cfg(doctest)]
#[doc = include_str!("../../docs/library/testing.md")]
mod testing_page {}
pub mod harness;
#[cfg(test)]
mod imports;
#[cfg(test)]
mod links;
#[cfg(test)]
mod mutations;
#[cfg(test)]
mod problems;
#[cfg(test)]
mod public_api;
#[cfg(test)]
mod quotations;
#[cfg(test)]
mod settings;
#[cfg(test)]
mod sources;
#[cfg(test)]
mod spawns;
#[cfg(test)]
mod workspace;
