//! The people who may use the dashboard: a file with a name, a role, a password hash and further rights per line.
//!
//! `garenne operators hash` makes a line. `#` begins a comment. A hash of `-` stands for no password: such a person logs
//! in at a trusted proxy only.

mod cli;
mod password;

use std::{collections::HashMap, path::Path, sync::Arc};

use clap::ValueEnum;
use garenne_common::config::ConfigError;
use serde::{Deserialize, Serialize};
use strum::{Display, EnumString};

pub use cli::{OperatorsVerb, run};
pub(crate) use password::PasswordHash;

/// Longest name, in bytes.
const MAX_NAME: usize = 64;
/// The hash of a person without a password.
const NO_PASSWORD: &str = "-";
/// The right to look at the messages of queues.
pub(crate) const QUEUES_RIGHT: &str = "queues";
const EXPECTED: &str = "expected NAME ROLE HASH, as `garenne operators hash` prints it";

/// Rights of a person.
#[derive(
    Clone, Copy, Debug, Display, EnumString, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Role {
    /// See the fleet.
    Viewer,
    /// See the fleet, and give commands.
    Operator,
}

/// A person of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) role: Role,
    /// Whether the person may look at the messages of queues.
    pub(crate) may_look: bool,
    /// [`None`] without a password.
    pub(crate) password: Option<Arc<PasswordHash>>,
}

/// The persons of the file, by name.
pub(crate) type Accounts = HashMap<String, Account>;

/// Reads the file of the setting `dashboard.operators`. The error never repeats a hash.
pub(crate) fn read(path: &Path) -> Result<Accounts, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
    let accounts = text.and_then(|text| parse(&text));
    accounts
        .map_err(|problem| ConfigError::file("operators file", path, "setting dashboard.operators", problem))
}

fn parse(text: &str) -> Result<Accounts, String> {
    let mut accounts = Accounts::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.is_empty() {
            continue;
        }
        let invalid = |problem: String| format!("line {}: {problem}", number + 1);
        let (name, account) = entry(&words).map_err(invalid)?;
        if accounts.insert(name.to_owned(), account).is_some() {
            return Err(invalid(format!("the name {name:?} is already used by an earlier line")));
        }
    }
    if accounts.is_empty() { Err(format!("it has no line, {EXPECTED}")) } else { Ok(accounts) }
}

fn entry<'a>(words: &[&'a str]) -> Result<(&'a str, Account), String> {
    let [name, role, hash, rights @ ..] = words else { return Err(EXPECTED.to_owned()) };
    check_name(name)?;
    let role =
        role.parse().map_err(|_| format!("the role {role:?} is unknown, expected viewer or operator"))?;
    let password = match *hash {
        NO_PASSWORD => None,
        hash => Some(Arc::new(PasswordHash::parse(hash)?)),
    };
    if let Some(right) = rights.iter().find(|right| **right != QUEUES_RIGHT) {
        return Err(format!("the right {right:?} is unknown, expected {QUEUES_RIGHT}"));
    }
    Ok((name, Account { role, may_look: !rights.is_empty(), password }))
}

/// Checks a person's name, which is written to records and logs.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@+".contains(&byte);
    if (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(allowed) {
        return Ok(());
    }
    Err(format!("the name {name:?} is refused, expected 1 to {MAX_NAME} of A-Z a-z 0-9 - _ . @ +"))
}

/// A password's hash as the file has it.
#[cfg(test)]
pub(crate) fn hashed(password: &str) -> String {
    PasswordHash::new(password).unwrap().as_str().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str =
        "$argon2id$v=19$m=19456,t=2,p=1$MDEyMzQ1Njc4OTAxMjM0NQ$4ZDVkXvVIqEMtFJ3cqAVJR0fVVVmNsy8jjEOzYIfEyI";

    #[test]
    fn a_file_has_a_name_a_role_and_a_hash_per_line() {
        let accounts = parse(&format!(
            "# people\nanna operator {HASH}\n\nben@example.org viewer - queues  # by proxy\n"
        ))
        .unwrap();
        assert_eq!(accounts["anna"].role, Role::Operator);
        assert!(accounts["anna"].password.is_some() && !accounts["anna"].may_look);
        let ben = Account { role: Role::Viewer, may_look: true, password: None };
        assert_eq!(accounts["ben@example.org"], ben);
    }

    #[test]
    fn an_invalid_line_is_refused_with_its_number_and_without_its_hash() {
        for (text, expected) in [
            ("", "it has no line, expected NAME ROLE HASH, as `garenne operators hash` prints it"),
            ("\nanna operator", "line 2: expected NAME ROLE HASH, as `garenne operators hash` prints it"),
            ("anna viewer - queue", "line 1: the right \"queue\" is unknown, expected queues"),
            ("anna admin -", "line 1: the role \"admin\" is unknown, expected viewer or operator"),
            (
                "a,b viewer -",
                "line 1: the name \"a,b\" is refused, expected 1 to 64 of A-Z a-z 0-9 - _ . @ +",
            ),
            (
                "anna viewer -\nanna operator -",
                "line 2: the name \"anna\" is already used by an earlier line",
            ),
        ] {
            assert_eq!(parse(text).unwrap_err(), expected);
        }
        let error = parse("anna operator my-own-password").unwrap_err();
        assert!(error.starts_with("line 1: the hash is not valid") && !error.contains("my-own"), "{error}");
        // A hash that takes gigabytes or minutes to check.
        for costs in ["m=4194304,t=2,p=1", "m=19456,t=1000,p=1"] {
            let error = parse(&format!("a operator {}", HASH.replace("m=19456,t=2,p=1", costs))).unwrap_err();
            assert!(error.contains("costs more than"), "{error}");
        }
    }
}
