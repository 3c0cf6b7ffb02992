//! What requests to services of others have in common: their signature and how long to wait for the next one.
//!
//! Signatures are those of the Standard Webhooks specification, version 1: HMAC-SHA256 over id, time and body.

use std::{str::FromStr, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use derive_more::{Debug, Display};
use hmac::{Hmac, Mac};
use secrecy::{ExposeSecret, SecretSlice};
use serde_with::{DeserializeFromStr, SerializeDisplay};
use sha2::Sha256;
use time::{OffsetDateTime, format_description::well_known::Rfc2822};

/// The prefix of a secret.
const PREFIX: &str = "whsec_";

/// The signing key of a webhook: `whsec_` and base64 of 24 to 64 bytes. Its text, debug and
/// serialized forms are `***`.
#[derive(Clone, Debug, Display, DeserializeFromStr, SerializeDisplay)]
#[display("***")]
#[debug("{self}")]
pub struct SigningSecret(SecretSlice<u8>);

/// Parses a secret. The error states the expected form, without the secret.
impl FromStr for SigningSecret {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = |reason: &str| {
            Err(format!("invalid signing secret ({reason}); expected {PREFIX} and base64 of 24 to 64 bytes"))
        };
        let Some(key) = text.trim().strip_prefix(PREFIX) else { return invalid("the prefix is missing") };
        match STANDARD.decode(key) {
            Err(_) => invalid("not base64"),
            Ok(key) if !(24..=64).contains(&key.len()) => invalid(&format!("{} bytes", key.len())),
            Ok(key) => Ok(Self(key.into())),
        }
    }
}

impl SigningSecret {
    /// The value of `webhook-signature`.
    pub fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(self.0.expose_secret()).expect("HMAC takes keys of any length");
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// Parses `Retry-After`: seconds, or an HTTP date. At most an hour.
pub fn parse_retry_after(text: &str, now: OffsetDateTime) -> Option<Duration> {
    let wait = match text.trim().parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let date = OffsetDateTime::parse(text.trim(), &Rfc2822).ok()?;
            Duration::try_from(date - now).unwrap_or_default()
        }
    };
    Some(wait.min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date_and_at_most_an_hour() {
        let now = OffsetDateTime::from_unix_timestamp(784_111_777).unwrap();
        let wait = |text: &str| parse_retry_after(text, now).map(|wait| wait.as_secs());
        assert_eq!(wait("120"), Some(120));
        assert_eq!(wait("Sun, 06 Nov 1994 08:50:07 GMT"), Some(30));
        assert_eq!(wait("Sun, 06 Nov 1994 08:49:00 GMT"), Some(0));
        assert_eq!(wait("999999999999"), Some(3600));
        assert_eq!((wait("soon"), wait("-1")), (None, None));
    }

    /// The example of the specification's reference libraries.
    #[test]
    fn signatures_match_the_reference_libraries() {
        let secret: SigningSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse().unwrap();
        let signed = secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn errors_do_not_contain_the_secret() {
        let error = |text: &str| text.parse::<SigningSecret>().unwrap_err();
        let expected = "expected whsec_ and base64 of 24 to 64 bytes";
        assert_eq!(error("hunter2"), format!("invalid signing secret (the prefix is missing); {expected}"));
        assert_eq!(error("whsec_h?"), format!("invalid signing secret (not base64); {expected}"));
        assert_eq!(error("whsec_aGVsbG8="), format!("invalid signing secret (5 bytes); {expected}"));
        let secret: SigningSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse().unwrap();
        assert_eq!(serde_json::to_string(&secret).unwrap(), "\"***\"");
    }
}
