//! The URL of a drill's workers through the proxy of `--cuts`, in a file that follows the user's file.

use std::{
    fs::OpenOptions,
    io::Write,
    net::SocketAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::Context;
use garenne_common::{
    config::{ConfigError, read_secret_file},
    reloaded::Reloaded,
};
use secrecy::ExposeSecret;

use crate::fault_proxy::through;

const SETTING: &str = "amqp_url";

/// A file with the URL through the proxy, which only this user can read. It is written again when the user's file changes,
/// so that the workers read a changed password, and removed when this is dropped.
pub(crate) struct ProxiedUrl {
    current: Reloaded<()>,
    file: PathBuf,
}

impl ProxiedUrl {
    /// Writes the file into the folder `dir`. `source` is the user's file.
    pub(crate) fn write(source: &Path, proxy: SocketAddr, dir: &Path) -> Result<Self, ConfigError> {
        let (source, file) = (source.to_owned(), dir.join("amqp-url"));
        let (from, to) = (source.clone(), file.clone());
        let current = Reloaded::new("workers' URLs", vec![source], move || {
            let url = read_secret_file(SETTING, &from)?;
            let written = through(url.expose_secret().trim(), proxy).and_then(|url| replace(&to, &url));
            let origin = format!("setting {SETTING}");
            written
                .map_err(|error| ConfigError::file("secret file", &from, origin, format_args!("{error:#}")))
        })?;
        Ok(Self { current, file })
    }

    /// The file with the URL through the proxy.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// Writes the file again if the user's file has changed.
    pub(crate) fn refresh(&self) {
        self.current.refresh();
    }
}

/// Replaces the file in one step: a worker may read it at any time.
fn replace(file: &Path, text: &str) -> anyhow::Result<()> {
    let new = file.with_extension("new");
    let mut options = OpenOptions::new();
    let opened = options.write(true).create(true).truncate(true).mode(0o600).open(&new);
    let written = opened.and_then(|mut opened| opened.write_all(text.as_bytes()));
    written
        .and_then(|()| std::fs::rename(&new, file))
        .with_context(|| format!("cannot write {}", file.display()))
}

impl Drop for ProxiedUrl {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_workers_url_follows_the_users_file_and_passes_through_the_proxy() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("source");
        std::fs::write(&source, "amqp://u:old@broker:5672/%2f\n").unwrap();
        let proxied = ProxiedUrl::write(&source, "127.0.0.1:4000".parse().unwrap(), dir.path()).unwrap();
        let file = proxied.file().to_owned();
        let read = || std::fs::read_to_string(&file).unwrap();
        assert_eq!(read(), "amqp://u:old@127.0.0.1:4000/%2f");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&source, "amqp://u:another@broker:5672/%2f\n").unwrap();
        proxied.refresh();
        assert_eq!(read(), "amqp://u:another@127.0.0.1:4000/%2f");
        drop(proxied);
        assert!(!file.exists(), "it holds a password");
    }
}
