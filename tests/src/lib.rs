//! Garenne's integration suite. The scenarios are in `tests/scenarios/`; this library is what they
//! stand on: real brokers and databases, and ways to hurt them.

#[cfg(test)]
mod dependencies;
pub mod docs;
pub mod harness;
#[cfg(test)]
mod imports;
#[cfg(test)]
mod links;
#[cfg(test)]
mod settings;
#[cfg(test)]
mod spawns;
