//! The settings of one program.

use std::path::Path;

use serde::{Serialize, de::DeserializeOwned};

use super::{Common, Invalid};

/// The settings of one program: a serde type with a default for every field (`#[serde(default)]`).
///
/// The names of the top-level settings are taken from the serialized default, so no setting may be skipped there.
/// Nested tables need `#[serde(deny_unknown_fields)]`; a flattened one must not have it.
pub trait Settings: Default + Serialize + DeserializeOwned {
    /// Settings that apply to each lane, unless the lane has its own from the same source or one of higher precedence
    /// (flag, environment, file). They need no field: [`load`](super::load()) inserts them into the lanes of the field
    /// `lanes`.
    const PER_LANE: &'static [&'static str] = &[];

    /// The settings that every program has.
    fn common_mut(&mut self) -> &mut Common;

    /// Validates what a single value's type cannot, such as one limit that must be below another.
    ///
    /// # Errors
    /// The first invalid setting.
    fn validate(&self) -> Result<(), Invalid> {
        Ok(())
    }

    /// Called for each setting whose effective value was read from the file of its `…_FILE` variable, so that a
    /// rotated secret can be read again.
    fn read_from(&mut self, setting: &str, file: &Path) {
        self.common_mut().read_from(setting, file);
    }
}
