//! The folder for the logs and reports of a run.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::Context;

/// Creates the folder that the user chose, or a new one under the system's temporary folder. `stem` begins its name.
///
/// # Errors
/// If the folder cannot be created or is not empty: logs of an earlier run would be counted.
pub fn create_run_folder(chosen: Option<&Path>, stem: &str) -> anyhow::Result<PathBuf> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    let folder = match chosen {
        Some(folder) => folder.to_owned(),
        None => std::env::temp_dir().join(format!("{stem}-{now}-{}", std::process::id())),
    };
    fs::create_dir_all(&folder).with_context(|| format!("cannot create folder {}", folder.display()))?;
    let is_empty = fs::read_dir(&folder)?.next().is_none();
    anyhow::ensure!(
        is_empty,
        "folder {} is not empty: logs of an earlier run would be counted",
        folder.display()
    );
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_files_in_it_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let chosen = dir.path().join("run");
        assert_eq!(create_run_folder(Some(&chosen), "garenne-test").unwrap(), chosen);
        fs::write(chosen.join("worker-1.ndjson"), "").unwrap();
        let refused = create_run_folder(Some(&chosen), "garenne-test").unwrap_err().to_string();
        let expected =
            format!("folder {} is not empty: logs of an earlier run would be counted", chosen.display());
        assert_eq!(refused, expected);
    }
}
