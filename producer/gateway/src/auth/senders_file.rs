//! The senders file: TOML with an entry `[[sender]]` for each token and each pattern of certificates, and the defaults
//! `[certificates]` and `[anonymous]`.

use std::{collections::HashMap, path::Path, sync::Arc};

use garenne_common::{
    config::{ConfigError, parse_toml},
    pattern::NamePattern,
};
use serde::Deserialize;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{
    caller::{Credential, Hash},
    grant::{Devices, Grant},
    rate::Rate,
    senders::Senders,
};
use garenne_publish::READING_KIND;

/// Longest pattern, in bytes.
const MAX_PATTERN: usize = 255;

/// Limits for reading the file.
#[derive(Clone, Copy)]
pub(super) struct Context {
    /// Whether the gateway verifies client certificates.
    pub(super) certificates: bool,
    /// Most records of one request.
    pub(super) max_request_records: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    sender: Vec<Entry>,
    certificates: Option<Defaults>,
    anonymous: Option<Defaults>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    token_sha256: Option<String>,
    certificate: Option<String>,
    kinds: Option<Vec<String>>,
    devices: Option<Vec<String>>,
    rate: Option<u32>,
    #[serde(default)]
    forward: bool,
    expires: Option<toml::Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Defaults {
    kinds: Option<Vec<String>>,
    devices: Option<Vec<String>>,
    rate: Option<u32>,
}

/// The only credential of an entry.
enum Known {
    Token(Hash),
    Certificate(NamePattern),
}

pub(super) fn read(path: &Path, context: Context) -> Result<Senders, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
    // A file that is rewritten in place is empty for a moment.
    let text = text.and_then(|text| match text.trim() {
        "" => Err("is empty: it needs a sender, or a comment if every client has a certificate".to_owned()),
        _ => Ok(text),
    });
    let senders = text.and_then(|text| parse(&text, context));
    senders.map_err(|problem| ConfigError::file("senders file", path, "setting tokens", problem))
}

pub(super) fn parse(text: &str, context: Context) -> Result<Senders, String> {
    let File { sender, certificates, anonymous } = parse_toml(text)?;
    let defaults = |name: &'static str, given: Option<Defaults>, devices: Option<Devices>| {
        let Some(Defaults { kinds, devices: named, rate }) = given else { return Ok(None) };
        let grant = grant(name, (kinds, named, rate), devices, context);
        grant.map(Some).map_err(|problem| format!("[{name}]: {problem}"))
    };
    if certificates.is_some() && !context.certificates {
        return Err("[certificates]: there are none without the setting tls_client_ca".to_owned());
    }
    let other = defaults("certificates", certificates, Some(Devices::OfCertificate))?;
    let anonymous = defaults("anonymous", anonymous, None)?;
    let mut senders = Senders {
        tokens: HashMap::new(),
        certificates: Vec::new(),
        other_certificates: Arc::new(other.unwrap_or_else(Grant::of_certificates)),
        anonymous: anonymous.map(|grant| (Credential::Anonymous, Arc::new(grant))),
    };
    let mut names: Vec<String> = Vec::new();
    for (index, entry) in sender.into_iter().enumerate() {
        let name = entry.name.clone();
        let at = |problem: String| format!("sender {} ({:?}): {problem}", index + 1, name);
        if names.contains(&name) {
            return Err(at("name: an earlier sender has it".to_owned()));
        }
        let (known, grant) = entry.read(context).map_err(at)?;
        match known {
            Known::Certificate(pattern) => senders.certificates.push((pattern, Arc::new(grant))),
            Known::Token(hash) => {
                if senders.tokens.insert(hash, Arc::new(grant)).is_some() {
                    return Err(at("token_sha256: an earlier sender has this token".to_owned()));
                }
            }
        }
        names.push(name);
    }
    Ok(senders)
}

impl Entry {
    fn read(self, context: Context) -> Result<(Known, Grant), String> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !(1..=64).contains(&self.name.len()) || !self.name.bytes().all(allowed) {
            return Err("name: expected 1 to 64 of a-z A-Z 0-9 . _ -".to_owned());
        }
        let known = match (&self.token_sha256, &self.certificate) {
            (Some(hash), None) => Known::Token(token_hash(hash)?),
            (None, Some(_)) if !context.certificates => {
                return Err("certificate: there are none without the setting tls_client_ca".to_owned());
            }
            (None, Some(text)) => Known::Certificate(pattern("certificate", text)?),
            _ => return Err("expected either token_sha256 or certificate".to_owned()),
        };
        let devices = matches!(known, Known::Certificate(_)).then_some(Devices::OfCertificate);
        let expires = self.expires.as_ref().map(expiry).transpose()?;
        let grant = grant(&self.name, (self.kinds, self.devices, self.rate), devices, context)?;
        Ok((known, Grant { expires, forward: self.forward, ..grant }))
    }
}

/// `devices` is the default; without one, the devices must be named.
fn grant(
    name: &str,
    (kinds, named, rate): (Option<Vec<String>>, Option<Vec<String>>, Option<u32>),
    devices: Option<Devices>,
    context: Context,
) -> Result<Grant, String> {
    let kinds = kinds.unwrap_or_else(|| vec![READING_KIND.to_owned()]);
    let devices = match (named, devices) {
        (Some(named), _) => Devices::Matching(patterns("devices", &named)?),
        (None, Some(default)) => default,
        (None, None) => {
            return Err(
                "devices: missing; name them, such as [\"boiler-*\"], or allow all with [\"*\"]".to_owned()
            );
        }
    };
    let rate = rate.map(|per_second| {
        Rate::new(per_second, context.max_request_records)
            .ok_or_else(|| format!("rate: {per_second} records per second; expected 1 or more"))
    });
    Ok(Grant {
        name: name.into(),
        kinds: patterns("kinds", &kinds)?,
        devices,
        expires: None,
        rate: rate.transpose()?,
        forward: false,
    })
}

fn patterns(field: &str, texts: &[String]) -> Result<Vec<NamePattern>, String> {
    texts.iter().map(|text| pattern(field, text)).collect()
}

fn pattern(field: &str, text: &str) -> Result<NamePattern, String> {
    if text.len() > MAX_PATTERN {
        return Err(format!("{field}: a pattern has {} bytes; expected 1 to {MAX_PATTERN}", text.len()));
    }
    NamePattern::parse(text).map_err(|problem| format!("{field}: {problem}"))
}

/// The error does not quote the text, which may be the token itself by mistake.
fn token_hash(text: &str) -> Result<Hash, String> {
    let mut hash = Hash::default();
    let decoded = hex::decode_to_slice(text, &mut hash);
    decoded.map_err(|_| {
        "token_sha256: expected 64 hexadecimal digits: printf %s TOKEN | sha256sum".to_owned()
    })?;
    Ok(hash)
}

/// A time as a string or as TOML's own type.
fn expiry(value: &toml::Value) -> Result<OffsetDateTime, String> {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    OffsetDateTime::parse(&text, &Rfc3339).map_err(|_| {
        format!("expires: {text:?} is not a time with a UTC offset, such as 2027-01-31T00:00:00Z")
    })
}
