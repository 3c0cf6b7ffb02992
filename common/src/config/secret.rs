//! Secrets, which logs, errors and the printed configuration must not show.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use derive_more::{Debug, Display};
use secrecy::{ExposeSecret, SecretString};
use serde::de::{Deserialize, Deserializer, Error as _};
use serde::{Serialize, Serializer};
use url::Url;

use super::ConfigError;

/// Shown in place of a secret.
const MASK: &str = "***";

/// A URL that may contain a password. Its text, debug and serialized forms show `***` instead.
#[derive(Clone, Debug, Display)]
#[debug("SecretUrl({masked})")]
#[display("{masked}")]
pub struct SecretUrl {
    whole: SecretString,
    masked: String,
    file: Option<PathBuf>,
}

impl SecretUrl {
    /// The URL with its password, for connecting only.
    pub fn expose(&self) -> &str {
        self.whole.expose_secret()
    }

    /// The URL with `***` in place of its password.
    pub fn masked(&self) -> &str {
        &self.masked
    }

    /// The file that it was read from, if any. The file's content may have changed since.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Records the file that it was read from.
    pub fn read_from(&mut self, file: &Path) {
        self.file = Some(file.to_owned());
    }

    /// Reads its file again. Returns the same URL if it was not read from a file.
    ///
    /// # Errors
    /// The file cannot be read or does not contain a URL. The text does not repeat the content.
    pub async fn read_again(&self) -> Result<Self, String> {
        let Some(file) = &self.file else { return Ok(self.clone()) };
        let text = tokio::fs::read_to_string(file).await.map_err(|error| error.to_string())?;
        let mut again: Self = text.parse()?;
        again.read_from(file);
        Ok(again)
    }

    /// The part before the first colon, in lower case.
    pub fn scheme(&self) -> &str {
        self.masked.split_once(':').map_or("", |(scheme, _)| scheme)
    }
}

impl FromStr for SecretUrl {
    type Err = String;

    /// The error does not repeat the text, because it may be a secret.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let problem = match Url::parse(text.trim()) {
            Ok(url) if !url.cannot_be_a_base() => {
                return Ok(Self { masked: mask_url(url), whole: text.trim().to_owned().into(), file: None });
            }
            Ok(_) | Err(url::ParseError::RelativeUrlWithoutBase) => "the scheme is missing".to_owned(),
            Err(error) => error.to_string(),
        };
        // An unencoded password is the usual cause of errors such as `invalid port number`.
        let hint =
            if text.contains('@') { "; in a password, # / ? @ : and % are percent-encoded" } else { "" };
        Err(format!(
            "not a URL, expected a URL such as scheme://user:password@host:port/path ({problem}{hint})"
        ))
    }
}

impl PartialEq for SecretUrl {
    fn eq(&self, other: &Self) -> bool {
        self.expose() == other.expose()
    }
}

impl Eq for SecretUrl {}

impl Serialize for SecretUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.masked)
    }
}

impl<'de> Deserialize<'de> for SecretUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

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

fn mask_url(mut url: Url) -> String {
    if url.password().is_some() {
        // Fails only for URLs without a host, and those have no password.
        let _ = url.set_password(Some(MASK));
    }
    if url.query().is_some() {
        let pairs: Vec<(String, String)> = url
            .query_pairs()
            .map(|(key, value)| {
                let secret = ["pass", "secret", "token"].iter().any(|word| key.contains(word));
                (key.into_owned(), if secret { MASK.to_owned() } else { value.into_owned() })
            })
            .collect();
        url.query_pairs_mut().clear().extend_pairs(pairs);
    }
    url.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_shown_only_by_expose() {
        let url: SecretUrl = "amqp://user:s3cret@host:5672/%2f".parse().unwrap();
        assert_eq!(url.expose(), "amqp://user:s3cret@host:5672/%2f");
        assert_eq!(url.to_string(), "amqp://user:***@host:5672/%2f");
        assert_eq!(format!("{url:?}"), "SecretUrl(amqp://user:***@host:5672/%2f)");
        assert_eq!(serde_json::to_string(&url).unwrap(), "\"amqp://user:***@host:5672/%2f\"");
        assert_eq!(url.scheme(), "amqp");
    }

    #[tokio::test]
    async fn read_again_returns_the_current_content_of_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut url: SecretUrl = "amqp://u:old@host".parse().unwrap();
        assert_eq!(url.read_again().await.unwrap(), url);
        url.read_from(file.path());
        std::fs::write(file.path(), "amqp://u:new@host\n").unwrap();
        let again = url.read_again().await.unwrap();
        assert_eq!((again.expose(), again.file()), ("amqp://u:new@host", Some(file.path())));
        std::fs::write(file.path(), "s3cret").unwrap();
        let refusal = url.read_again().await.unwrap_err();
        assert!(refusal.starts_with("not a URL, expected") && !refusal.contains("s3cret"), "{refusal}");
    }

    #[test]
    fn a_url_without_a_password_is_shown_unmasked() {
        let url: SecretUrl = "http://localhost:15672".parse().unwrap();
        assert_eq!(url.masked(), "http://localhost:15672/");
    }

    #[test]
    fn a_password_in_the_query_is_masked() {
        let url: SecretUrl = "postgres://host/db?user=u&password=p&sslmode=require".parse().unwrap();
        assert_eq!(url.masked(), "postgres://host/db?user=u&password=***&sslmode=require");
    }

    #[test]
    fn invalid_urls_are_masked_before_the_host() {
        assert_eq!(mask("amqp_url", "amqp//user:s3cret@host"), "***@host");
        assert_eq!(mask("amqp_url", "amqp://user:s3c@ret@host:port"), "amqp://***@host:port");
        assert_eq!(mask("amqp_url", "user:s3cret@host"), "***@host");
        assert_eq!(mask("postgres.password", "s3cret"), "***");
        assert_eq!(mask("prefix", "a b"), "a b");
    }

    #[test]
    fn the_error_for_text_that_is_not_a_url_does_not_repeat_it() {
        let refusal = |text: &str| text.parse::<SecretUrl>().unwrap_err();
        let expected = "not a URL, expected a URL such as scheme://user:password@host:port/path";
        assert_eq!(refusal("localhost:5672"), format!("{expected} (the scheme is missing)"));
        assert_eq!(refusal("localhost"), format!("{expected} (the scheme is missing)"));
        assert_eq!(
            refusal("amqp://user:s3#cret@host"),
            format!("{expected} (invalid port number; in a password, # / ? @ : and % are percent-encoded)")
        );
    }

    #[test]
    fn the_host_can_be_a_socket_folder_in_the_query() {
        let url: SecretUrl = "postgres:///garenne?host=/run/postgresql".parse().unwrap();
        assert_eq!(url.expose(), "postgres:///garenne?host=/run/postgresql");
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
