//! The names by which clients may address a program's HTTP servers.

use std::{convert::Infallible, str::FromStr};

use serde::{Deserialize, Serialize};

use super::{Invalid, list};

/// The setting `allowed_hosts`: names besides `localhost`, the host's own name and IP addresses. `*.example.org` stands for
/// every name below `example.org`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AllowedHosts(#[serde(with = "list")] Vec<String>);

impl AllowedHosts {
    /// # Errors
    /// An item is no name.
    pub fn validate(&self) -> Result<(), Invalid> {
        for item in &self.0 {
            let name = item.strip_prefix("*.").unwrap_or(item);
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            let valid =
                (1..=253).contains(&name.len()) && name.bytes().all(allowed) && !name.starts_with('.');
            let problem = "expected names without a port, such as garenne.example.org or *.example.org";
            Invalid::unless(valid, "allowed_hosts", format_args!("{item:?}"), problem)?;
        }
        Ok(())
    }

    /// Whether `name`, in lower case, is one of them.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|item| match item.strip_prefix('*') {
            Some(suffix) => name.to_ascii_lowercase().ends_with(&suffix.to_ascii_lowercase()),
            None => item.eq_ignore_ascii_case(name),
        })
    }
}

impl FromStr for AllowedHosts {
    type Err = Infallible;

    /// Names with commas between them.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.split(',').map(|name| name.trim().to_owned()).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_that_is_no_name_is_refused() {
        let check = |text: &str| text.parse::<AllowedHosts>().unwrap().validate();
        assert_eq!(check("a.example.org,*.b.example.org,console"), Ok(()));
        for text in ["*", "*.", "http://a", "a:9465", "a b", ".a", "a,,b", "*a"] {
            let problem = check(text).unwrap_err();
            assert_eq!(problem.setting, "allowed_hosts", "{text}");
        }
    }
}
