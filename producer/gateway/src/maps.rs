//! The maps of `POST /v1/map/{name}`: the shipped ones, and those of files.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use garenne_common::config::Invalid;
use garenne_map::{
    Map,
    builtin::{self, BUILTIN},
};

use crate::refusal::Refusal;

/// Maximum length of a map's name.
const MAX_NAME: usize = 64;

/// The maps by name. A file replaces the shipped map of the same name.
#[derive(Debug, Default)]
pub struct Maps {
    own: BTreeMap<String, Arc<Map>>,
    /// Each is compiled when it is first used.
    shipped: [OnceLock<Arc<Map>>; BUILTIN.len()],
}

impl Maps {
    /// Loads the files of the setting `maps`. The name of a map is that of its file without the extension. Two files
    /// may not have the same name.
    pub fn load(files: &[PathBuf]) -> Result<Self, Invalid> {
        let mut own = BTreeMap::new();
        for file in files {
            let invalid =
                |problem| Invalid::new("maps", format!("{:?}", file.display().to_string()), problem);
            let name = name_of(file).map_err(invalid)?;
            let map = Map::load(&file.display().to_string()).map_err(|error| invalid(error.problem))?;
            if own.insert(name.clone(), Arc::new(map)).is_some() {
                return Err(invalid(format!("another file has the name {name}")));
            }
        }
        Ok(Self { own, ..Self::default() })
    }

    /// The path by which the rules of a map see its payloads, over HTTP and TCP.
    pub(super) fn path(name: &str) -> Arc<str> {
        format!("/v1/map/{name}").into()
    }

    pub(super) fn get(&self, name: &str) -> Result<Arc<Map>, Refusal> {
        if let Some(map) = self.own.get(name) {
            return Ok(Arc::clone(map));
        }
        let shipped = BUILTIN.iter().zip(&self.shipped).find(|(builtin, _)| builtin.name == name);
        let (builtin, compiled) = shipped.ok_or_else(|| Refusal::no_map(name))?;
        let compile = || {
            let file = format!("{}{}", builtin::PREFIX, builtin.name);
            Arc::new(Map::parse(&file, builtin.text).expect("shipped maps are valid, which a test checks"))
        };
        Ok(Arc::clone(compiled.get_or_init(compile)))
    }
}

fn name_of(file: &Path) -> Result<String, String> {
    let is_valid = |name: &&str| {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        name.len() <= MAX_NAME && name.bytes().all(is_allowed)
    };
    let name = file.file_stem().and_then(|name| name.to_str()).filter(is_valid);
    let expected = || {
        format!("expected a file whose name without the extension has 1 to {MAX_NAME} of a-z A-Z 0-9 . _ -")
    };
    name.map(str::to_owned).ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: &str = "[[map]]\ndevice = \"d\"\nmetric = \"m\"\n";

    #[test]
    fn a_file_has_its_own_name_and_replaces_a_shipped_map() {
        let folder = tempfile::tempdir().unwrap();
        let files = ["plant-1.toml", "ttn.toml"].map(|name| folder.path().join(name));
        for file in &files {
            std::fs::write(file, RULE).unwrap();
        }
        let maps = Maps::load(&files).unwrap();
        assert_eq!(maps.get("plant-1").unwrap().pattern(1), "every source");
        assert_eq!(maps.get("ttn").unwrap().pattern(1), "every source");
        assert_ne!(maps.get("chirpstack").unwrap().pattern(1), "every source");
        assert_eq!(maps.get("x").unwrap_err().to_string(), "no map has the name \"x\"");
    }

    #[test]
    fn invalid_files_are_refused_with_the_problem() {
        let folder = tempfile::tempdir().unwrap();
        let written = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            path
        };
        let (good, same) = (written("a.toml", RULE), written("other/a.toml", RULE));
        for (files, expected) in [
            (vec![good, same], "another file has the name a"),
            (vec![written("b.toml", "[[map]]\nx = 1")], "rule 1: unknown field `x`"),
            (vec![written("c d.toml", RULE)], "expected a file whose name without the extension has 1 to 64"),
            (vec![folder.path().join("absent.toml")], "No such file or directory"),
        ] {
            let error = Maps::load(&files).unwrap_err();
            assert_eq!(error.setting, "maps");
            assert!(error.problem.starts_with(expected), "{}", error.problem);
        }
    }

    #[test]
    fn every_shipped_map_can_be_used() {
        let maps = Maps::default();
        for builtin in BUILTIN {
            maps.get(builtin.name).unwrap();
        }
    }
}
