//! Secrets in files, and masking of secrets in values that an error shows.

use std::path::{Path, PathBuf};

use secrecy::SecretString;
use url::Url;

use super::ConfigError;
use crate::{
    reloaded::Reloaded,
    secret_url::{MASK, mask_url},
};

/// Reads a secret from the file that `setting` names, such as the admin token.
///
/// # Errors
/// The file cannot be read, is empty, or is not UTF-8.
pub fn read_secret_file(setting: &str, path: &Path) -> Result<SecretString, ConfigError> {
    let (what, origin) = ("secret file", format!("setting {setting}"));
    let text = read_trimmed(what, path, &origin)?;
    if text.is_empty() {
        return Err(ConfigError::file(what, path, origin, "it is empty, expected the secret on one line"));
    }
    Ok(text.into())
}

/// As [`read_secret_file`], read again when the file changes.
///
/// # Errors
/// As [`read_secret_file`].
pub fn reloaded_secret(setting: &'static str, path: PathBuf) -> Result<Reloaded<SecretString>, ConfigError> {
    Reloaded::new("secrets", vec![path.clone()], move || read_secret_file(setting, &path))
}

/// Reads a file without the line break at its end, which editors and `echo` add. `origin` refers to it.
pub(super) fn read_trimmed(what: &'static str, path: &Path, origin: &str) -> Result<String, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|error| ConfigError::file(what, path, origin, error))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// `text`, the value of `setting`, with everything masked that may be secret. Masks too much rather than too little,
/// because it is also called for invalid values.
pub(super) fn mask(setting: &str, text: &str) -> String {
    let last = setting.rsplit('.').next().unwrap_or(setting);
    let names_secret = ["password", "secret", "token"].iter().any(|word| last.ends_with(word));
    if names_secret {
        return MASK.to_owned();
    }
    match Url::parse(text.trim()) {
        Ok(url) if !url.cannot_be_a_base() => mask_url(url),
        _ => match text.rsplit_once('@') {
            None => text.to_owned(),
            Some((before, host)) => {
                let scheme = before.split_once("://").map_or("", |(scheme, _)| scheme);
                let separator = if scheme.is_empty() { "" } else { "://" };
                format!("{scheme}{separator}{MASK}@{host}")
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    #[test]
    fn invalid_urls_are_masked_before_the_host() {
        assert_eq!(mask("amqp_url", "amqp//user:s3cret@host"), "***@host");
        assert_eq!(mask("amqp_url", "amqp://user:s3c@ret@host:port"), "amqp://***@host:port");
        assert_eq!(mask("amqp_url", "user:s3cret@host"), "***@host");
        assert_eq!(mask("postgres.password", "s3cret"), "***");
        assert_eq!(mask("prefix", "a b"), "a b");
    }

    #[test]
    fn the_error_for_an_empty_secret_file_names_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "\n").unwrap();
        let error = read_secret_file("admin_token_file", file.path()).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "secret file {} (setting admin_token_file) cannot be used: \
                 it is empty, expected the secret on one line",
                file.path().display()
            )
        );
        std::fs::write(file.path(), "t0ken\r\n").unwrap();
        assert_eq!(read_secret_file("admin_token_file", file.path()).unwrap().expose_secret(), "t0ken");
    }
}
