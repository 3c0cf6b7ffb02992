//! The token file: one `NAME SHA256-HEX [RECORDS/S]` per line, comments from `#` to the end of the line.

use std::{collections::HashMap, path::Path, sync::Arc};

use garenne_common::config::ConfigError;

use super::caller::{Caller, Hash, RateLimit};

pub(super) fn read(path: &Path, max_request_records: u32) -> Result<HashMap<Hash, Caller>, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
    let callers = text.and_then(|text| parse(&text, max_request_records));
    callers.map_err(|problem| {
        let (path, origin) = (path.to_owned(), "setting tokens".to_owned());
        ConfigError::File { what: "token file", path, origin, problem }
    })
}

fn parse(text: &str, max_request_records: u32) -> Result<HashMap<Hash, Caller>, String> {
    let mut callers = HashMap::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let (hash, caller) =
            entry(line, max_request_records).map_err(|problem| format!("line {}: {problem}", number + 1))?;
        if callers.insert(hash, caller).is_some() {
            return Err(format!("line {}: the token is already used by an earlier line", number + 1));
        }
    }
    Ok(callers)
}

fn entry(line: &str, max_request_records: u32) -> Result<(Hash, Caller), String> {
    const EXPECTED: &str = "expected NAME SHA256-HEX [RECORDS/S]";
    let words: Vec<&str> = line.split_whitespace().collect();
    // The error does not quote the second word, which may be the token itself by mistake.
    let mut hash = Hash::default();
    words.get(1).and_then(|word| hex::decode_to_slice(word, &mut hash).ok()).ok_or_else(|| {
        format!("{EXPECTED}, the hash as 64 hexadecimal digits: printf %s TOKEN | sha256sum")
    })?;
    let limit = match words[2..] {
        [] => None,
        [word] => {
            let per_second = word.parse().ok().filter(|rate| *rate > 0);
            let limit = per_second.and_then(|rate| RateLimit::new(rate, max_request_records));
            let bad = || format!("{word:?} is not a rate, expected records per second, 1 or more");
            Some(Arc::new(limit.ok_or_else(bad)?))
        }
        _ => return Err(format!("{EXPECTED} and nothing else")),
    };
    Ok((hash, Caller { name: words[0].into(), device: None, limit, token: Some(hash) }))
}
