use std::{io::Write, time::Duration};

use super::*;

fn peer(device: Option<&str>) -> Peer {
    Peer::new(([127, 0, 0, 1], 1).into()).with_device(device.map(Into::into))
}

fn hash(token: &str) -> String {
    hex::encode(Sha256::digest(token))
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn access(text: &str) -> Result<Access, String> {
    Access::new(Some(file(text).path()), false, 10).map_err(|error| error.to_string())
}

fn refused(result: Result<Caller, Refusal>) -> String {
    result.err().expect("a refusal").to_string()
}

#[test]
fn only_known_tokens_are_accepted() {
    let access = access(&format!("# senders\nroof {}  # since May\n", hash("s3cret"))).unwrap();
    assert_eq!(access.caller(&peer(None), Some("s3cret")).unwrap().name, "roof".into());
    assert_eq!(refused(access.caller(&peer(None), Some("guess"))), "not authenticated: unknown token");
    assert_eq!(refused(access.caller(&peer(None), None)), "not authenticated: no token");
    assert_eq!(Access::default().caller(&peer(None), None).unwrap().name, "anonymous".into());
}

#[test]
fn a_certificate_allows_readings_of_its_own_device_only() {
    let access = Access::new(None, true, 10).unwrap();
    assert!(access.caller(&peer(None), None).is_err());
    let caller = access.caller(&peer(Some("d1")), None).unwrap();
    caller.admit(["d1", "d1"].into_iter()).unwrap();
    assert_eq!(
        caller.admit(["d1", "d2"].into_iter()).unwrap_err().to_string(),
        "record 1: device: \"d2\" is not the certificate's device \"d1\""
    );
}

#[test]
fn the_rate_limit_is_per_token_and_answers_when_to_retry() {
    let access = access(&format!("roof {} 5\n", hash("t"))).unwrap();
    let caller = access.caller(&peer(None), Some("t")).unwrap();
    // The burst is as large as the largest request.
    caller.admit(["d"; 10].into_iter()).unwrap();
    let refusal = caller.admit(["d"; 10].into_iter()).unwrap_err();
    assert_eq!(refusal.to_string(), "rate limit of 5 records per second exceeded");
    let wait = refusal.retry_after.unwrap();
    assert!(wait > Duration::from_secs(1) && wait <= Duration::from_secs(2), "{wait:?}");
    // All connections with the same token share the limit.
    let again = access.caller(&peer(None), Some("t")).unwrap();
    assert!(again.admit(["d"].into_iter()).is_err());
}

#[test]
fn a_changed_token_file_is_reloaded_and_an_invalid_one_is_not() {
    let path = file(&format!("roof {}\n", hash("old")));
    let access = Access::new(Some(path.path()), false, 10).unwrap();
    let long_lived = access.caller(&peer(None), Some("old")).unwrap();
    std::fs::write(path.path(), "roof not-a-hash\n").unwrap();
    access.refresh();
    assert!(access.renewed(&long_lived).is_ok());
    std::fs::write(path.path(), format!("cellar {}\n", hash("new"))).unwrap();
    access.refresh();
    assert!(access.caller(&peer(None), Some("new")).is_ok());
    assert!(access.caller(&peer(None), Some("old")).is_err());
    assert_eq!(refused(access.renewed(&long_lived)), "not authenticated: the token was removed");
}

#[test]
fn an_invalid_token_file_is_refused_with_the_line_and_without_the_token() {
    let problem = |text: &str| access(text).err().unwrap().split("problem").last().unwrap().to_owned();
    let message = problem("roof my-own-token\n");
    assert!(message.contains("line 1: expected NAME SHA256-HEX [RECORDS/S]"), "{message}");
    assert!(!message.contains("my-own-token"), "{message}");
    assert!(problem(&format!("a {} 0\n", hash("t"))).contains("line 1: \"0\" is not a rate"));
    assert!(
        problem(&format!("a {0}\nb {0}\n", hash("t")))
            .contains("line 2: the token is already used by an earlier line")
    );
}
