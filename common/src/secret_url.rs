//! URLs with a password, which logs, errors and the printed configuration must not show.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use serde::{
    Serialize, Serializer,
    de::{Deserialize, Deserializer, Error as _},
};
use url::Url;

use crate::parse_error::ParseError;

/// Shown in place of a secret.
pub(crate) const MASK: &str = "***";

/// A URL that may contain a password. Its text, debug and serialized forms show `***` instead.
#[derive(Clone)]
pub struct SecretUrl {
    whole: String,
    masked: String,
    file: Option<PathBuf>,
}

impl SecretUrl {
    /// The URL with its password, for connecting only.
    pub fn expose(&self) -> &str {
        &self.whole
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
        let mut again: Self = text.parse().map_err(|error: ParseError| error.to_string())?;
        again.read_from(file);
        Ok(again)
    }

    /// The part before the first colon, in lower case.
    pub fn scheme(&self) -> &str {
        self.masked.split_once(':').map_or("", |(scheme, _)| scheme)
    }
}

impl FromStr for SecretUrl {
    type Err = ParseError;

    /// The error does not repeat the text, because it may be a secret.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let problem = match Url::parse(text.trim()) {
            Ok(url) if !url.cannot_be_a_base() => {
                return Ok(Self { masked: mask_url(url), whole: text.trim().to_owned(), file: None });
            }
            Ok(_) | Err(url::ParseError::RelativeUrlWithoutBase) => "the scheme is missing".to_owned(),
            Err(error) => error.to_string(),
        };
        // An unencoded password is the usual cause of errors such as `invalid port number`.
        let hint =
            if text.contains('@') { "; in a password, # / ? @ : and % are percent-encoded" } else { "" };
        Err(ParseError::new(format!(
            "not a URL, expected a URL such as scheme://user:password@host:port/path ({problem}{hint})"
        )))
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

impl fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.masked)
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretUrl({})", self.masked)
    }
}

/// The text of a URL with its secrets masked.
pub(crate) fn mask_url(mut url: Url) -> String {
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
    fn the_error_for_text_that_is_not_a_url_does_not_repeat_it() {
        let refusal = |text: &str| text.parse::<SecretUrl>().unwrap_err().to_string();
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
}
