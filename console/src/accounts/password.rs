//! Passwords as Argon2id hashes, in the form of PHC strings.

use std::sync::LazyLock;

use argon2::{
    ARGON2ID_IDENT, Argon2, Params, PasswordHasher, PasswordVerifier,
    password_hash::{PasswordHashString, SaltString},
};

/// Shortest password, in characters.
const MIN_PASSWORD: usize = 12;
/// Longest password, in bytes.
const MAX_PASSWORD: usize = 1024;
/// Limits on the cost of a check: memory in KiB, passes, lanes. [`PasswordHash::new`] uses 19 MiB, 2 and 1.
const MAX_COSTS: [u32; 3] = [64 * 1024, 10, 4];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PasswordHash(PasswordHashString);

/// The hash that the password of an unknown name is compared with, so that the answer takes as long as for a known one.
static UNKNOWN: LazyLock<PasswordHash> = LazyLock::new(|| {
    let random = rand::random::<[u8; 16]>().map(|byte| char::from(b'a' + byte % 16));
    PasswordHash::new(&String::from_iter(random)).expect("16 letters are a password")
});

impl PasswordHash {
    /// Hashes a password with a random salt.
    pub(crate) fn new(password: &str) -> Result<Self, String> {
        let (characters, bytes) = (password.chars().count(), password.len());
        if characters < MIN_PASSWORD || bytes > MAX_PASSWORD {
            return Err(format!(
                "the password is refused: expected at least {MIN_PASSWORD} characters and at most {MAX_PASSWORD} bytes, got {characters} characters"
            ));
        }
        let failed = |error| format!("the password cannot be hashed: {error}");
        let salt = SaltString::encode_b64(&rand::random::<[u8; 16]>()).map_err(failed)?;
        let hash = Argon2::default().hash_password(password.as_bytes(), &salt).map_err(failed)?;
        Ok(Self(hash.serialize()))
    }

    /// Reads a PHC string. Refuses one that is not Argon2id or costs too much to check. The error does not repeat it.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let invalid = || "the hash is not valid, expected $argon2id$… as `garenne operators hash` prints it";
        let string = PasswordHashString::new(text).map_err(|_| invalid())?;
        let hash = string.password_hash();
        let params = Params::try_from(&hash).map_err(|_| invalid())?;
        if hash.algorithm != ARGON2ID_IDENT || hash.hash.is_none() || hash.salt.is_none() {
            return Err(invalid().to_owned());
        }
        let costs = [params.m_cost(), params.t_cost(), params.p_cost()];
        if costs.iter().zip(MAX_COSTS).any(|(cost, max)| *cost > max) {
            let [memory, passes, lanes] = MAX_COSTS;
            return Err(format!("the hash costs more than m={memory},t={passes},p={lanes} to check"));
        }
        Ok(Self(string))
    }

    /// Whether this is the hash of `password`. Takes some 30 ms of CPU time and 19 MiB.
    pub(crate) fn matches(&self, password: &str) -> bool {
        password.len() <= MAX_PASSWORD
            && Argon2::default().verify_password(password.as_bytes(), &self.0.password_hash()).is_ok()
    }

    /// Takes the time of [`Self::matches`].
    pub(crate) fn waste_time(password: &str) {
        UNKNOWN.matches(password);
    }

    /// The PHC string.
    pub(super) fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_matches_only_its_password() {
        let hash = PasswordHash::new("correct horse battery").unwrap();
        assert!(hash.as_str().starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{}", hash.as_str());
        let read = PasswordHash::parse(hash.as_str()).unwrap();
        assert!(read.matches("correct horse battery"));
        assert!(!read.matches("correct horse batterz") && !read.matches(""));
        assert_ne!(PasswordHash::new("correct horse battery").unwrap(), hash, "the salt is random");
    }

    #[test]
    fn short_passwords_and_hashes_of_other_algorithms_are_refused() {
        let error = PasswordHash::new("elevenchars").unwrap_err();
        assert!(error.contains("at least 12 characters") && !error.contains("elevenchars"), "{error}");
        assert!(PasswordHash::new(&"x".repeat(1025)).is_err());
        let hash = PasswordHash::new("correct horse battery").unwrap();
        assert!(PasswordHash::parse(&hash.as_str().replace("argon2id", "argon2i")).is_err());
        assert!(PasswordHash::parse("$argon2id$v=19$m=19456,t=2,p=1").is_err());
    }
}
