use std::{io::Write, time::Duration};

use super::*;

fn peer() -> Peer {
    Peer::new(([127, 0, 0, 1], 1).into())
}

fn hash(token: &str) -> String {
    hex::encode(Sha256::digest(token))
}

/// The entry of a token in a senders file.
fn entry(name: &str, token: &str, rest: &str) -> String {
    format!("[[sender]]\nname = {name:?}\ntoken_sha256 = \"{}\"\n{rest}\n", hash(token))
}

const ANY: &str = "devices = [\"*\"]";

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn access(text: &str) -> Result<Access, String> {
    Access::new(Some(file(text).path()), true, 10).map_err(|error| error.to_string())
}

fn refused<T>(result: Result<T, Refusal>) -> String {
    result.err().expect("a refusal").to_string()
}

fn admit<'a>(
    caller: &Caller,
    kind: &str,
    devices: impl ExactSizeIterator<Item = &'a str>,
) -> Result<(), Refusal> {
    let records = devices.len();
    caller.check_records(kind, devices)?;
    caller.take(records)
}

fn reading(caller: &Caller, device: &str) -> Result<(), Refusal> {
    admit(caller, "reading.process", [device].into_iter())
}

#[test]
fn only_known_tokens_are_accepted() {
    let access = access(&(entry("roof", "s3cret", ANY) + "# since May\n")).unwrap();
    assert_eq!(access.caller(&peer(), Some("s3cret")).unwrap().name, "roof".into());
    assert_eq!(refused(access.caller(&peer(), Some("guess"))), "not authenticated: unknown token");
    assert_eq!(refused(access.caller(&peer(), None)), "not authenticated: no token");
    assert_eq!(Access::default().caller(&peer(), None).unwrap().name, "anonymous".into());
}

#[test]
fn a_token_may_send_readings_of_its_devices_only_unless_it_names_kinds() {
    let tasks = "devices = [\"boiler-*\", \"pump\"]\nkinds = [\"window.*\", \"alert.notify\"]";
    let text = entry("a", "a", "devices = [\"boiler-*\", \"pump\"]") + &entry("b", "b", tasks);
    let access = access(&text).unwrap();
    let readings = access.caller(&peer(), Some("a")).unwrap();
    admit(&readings, "reading.process", ["boiler-1", "pump"].into_iter()).unwrap();
    assert_eq!(
        refused(admit(&readings, "reading.process", ["boiler-1", "pump-2"].into_iter())),
        "record 1: device: sender \"a\" may not send \"pump-2\""
    );
    for kind in ["alert.notify", "window.analyze", "bench.noop", "reading.processed"] {
        let message = refused(admit(&readings, kind, [].into_iter()));
        assert_eq!(message, format!("kind: sender \"a\" may not send {kind:?}"));
    }
    let tasks = access.caller(&peer(), Some("b")).unwrap();
    admit(&tasks, "alert.notify", [].into_iter()).unwrap();
    admit(&tasks, "window.analyze", ["pump"].into_iter()).unwrap();
    assert!(admit(&tasks, "window.analyze", ["roof"].into_iter()).is_err());
    assert!(reading(&tasks, "pump").is_err(), "its kinds do not name readings");
}

#[test]
fn without_authentication_everything_is_allowed_but_alerts() {
    let open = Access::default().caller(&peer(), None).unwrap();
    reading(&open, "any").unwrap();
    admit(&open, "bench.noop", [].into_iter()).unwrap();
    assert_eq!(
        refused(admit(&open, "alert.notify", [].into_iter())),
        "kind: sender \"anonymous\" may not send \"alert.notify\""
    );
}

#[test]
fn anonymous_senders_have_the_scope_of_the_file_or_are_refused() {
    let both = access(&(entry("roof", "t", ANY) + "[anonymous]\ndevices = [\"public-*\"]\n")).unwrap();
    assert!(!both.is_required());
    let anonymous = both.caller(&peer(), None).unwrap();
    reading(&anonymous, "public-1").unwrap();
    assert!(reading(&anonymous, "roof").is_err());
    assert!(admit(&anonymous, "bench.noop", [].into_iter()).is_err());
    assert!(both.caller(&peer(), Some("wrong")).is_err(), "a wrong token is no anonymous sender");
    assert!(access(&entry("roof", "t", ANY)).unwrap().is_required());
}

#[test]
fn the_rate_limit_is_per_token() {
    let text = entry("roof", "t", "devices = [\"*\"]\nrate = 5")
        + &entry("cellar", "u", "devices = [\"*\"]\nrate = 5");
    let access = access(&text).unwrap();
    let caller = |token| access.caller(&peer(), Some(token)).unwrap();
    // The burst is as large as the largest request.
    admit(&caller("t"), "reading.process", ["d"; 10].into_iter()).unwrap();
    // All connections with the same token share the limit.
    assert!(reading(&caller("t"), "d").is_err());
    reading(&caller("u"), "d").unwrap();
}

#[test]
fn anonymous_senders_of_different_addresses_have_different_limits() {
    let access = access("[anonymous]\ndevices = [\"*\"]\nrate = 1\n").unwrap();
    let caller = |address: [u8; 4]| access.caller(&Peer::new((address, 1).into()), None).unwrap();
    admit(&caller([10, 0, 0, 1]), "reading.process", ["d"; 10].into_iter()).unwrap();
    assert!(reading(&caller([10, 0, 0, 1]), "d").is_err());
    reading(&caller([10, 0, 0, 2]), "d").unwrap();
}

#[test]
fn a_changed_senders_file_is_reloaded_and_an_invalid_one_is_not() {
    let path = file(&entry("roof", "old", ANY));
    let access = Access::new(Some(path.path()), false, 10).unwrap();
    let long_lived = access.caller(&peer(), Some("old")).unwrap();
    for invalid in ["[[sender]]\nname = \"roof\"\n", "", "\n"] {
        std::fs::write(path.path(), invalid).unwrap();
        access.refresh();
        assert!(Arc::ptr_eq(&access.renewed(&long_lived, &peer()).unwrap(), &long_lived), "{invalid:?}");
    }
    std::fs::write(path.path(), entry("roof", "old", "devices = [\"other\"]")).unwrap();
    access.refresh();
    let renewed = access.renewed(&long_lived, &peer()).unwrap();
    assert!(reading(&renewed, "roof").is_err(), "its scope is smaller now");
    std::fs::write(path.path(), entry("cellar", "new", ANY)).unwrap();
    access.refresh();
    assert!(access.caller(&peer(), Some("new")).is_ok());
    assert!(access.caller(&peer(), Some("old")).is_err());
    assert_eq!(refused(access.renewed(&long_lived, &peer())), "not authenticated: unknown token");
}

#[test]
fn an_entry_is_valid_until_it_expires() {
    let end = time::macros::datetime!(2027-01-31 00:00 UTC);
    let text = entry("a", "t", "devices = [\"*\"]\nexpires = 2027-01-31T01:00:00+01:00");
    let context = senders_file::Context { certificates: false, max_request_records: 10 };
    let senders = senders_file::parse(&text, context).unwrap();
    let find = |now| senders.find(&peer(), Some(Sha256::digest("t").into()), now, 0);
    assert_eq!(find(end - Duration::from_millis(1)).ok().unwrap().expires, Some(end));
    assert_eq!(find(end).err(), Some("the sender's entry has expired"));
}

#[test]
fn ids_of_different_senders_are_different() {
    let access =
        access(&(entry("a", "a", ANY) + &entry("b", "b", ANY) + "[anonymous]\ndevices = [\"*\"]\n")).unwrap();
    let id = garenne_protocol::task::TaskId::parse("key-1").unwrap();
    let own = |token| access.caller(&peer(), token).unwrap().own_id(id.clone());
    assert_eq!(own(Some("a")), own(Some("a")));
    assert!(own(Some("a")) != own(Some("b")) && own(Some("a")) != own(None) && own(None) != id);
    assert_eq!(Access::default().caller(&peer(), None).unwrap().own_id(id.clone()), id);
}

#[test]
fn an_invalid_senders_file_is_refused_with_the_field_and_without_the_token() {
    let problem = |text: &str| {
        let error = access(text).err().unwrap();
        error.split_once("cannot be used: ").unwrap().1.to_owned()
    };
    let message = problem("[[sender]]\nname = \"roof\"\ntoken_sha256 = \"my-own-token\"\n");
    assert_eq!(
        message,
        "sender 1 (\"roof\"): token_sha256: expected 64 hexadecimal digits: printf %s TOKEN | sha256sum"
    );
    let entry = |rest: &str| entry("a", "t", rest);
    let at = |rest: &str| problem(&entry(rest)).strip_prefix("sender 1 (\"a\"): ").unwrap().to_owned();
    assert_eq!(at(""), "devices: missing; name them, such as [\"boiler-*\"], or allow all with [\"*\"]");
    assert_eq!(
        at("devices = [\"a*b\"]"),
        "devices: \"a*b\"; expected a name, or a prefix and \"*\" at its end"
    );
    assert_eq!(
        at("devices = []\nkinds = [\"\"]"),
        "kinds: \"\"; expected a name, or a prefix and \"*\" at its end"
    );
    let long = at(&format!("devices = [\"{}\"]", "x".repeat(256)));
    assert_eq!(long, "devices: a pattern has 256 bytes; expected 1 to 255");
    assert_eq!(at("devices = []\nrate = 0"), "rate: 0 records per second; expected 1 or more");
    assert_eq!(
        at("devices = []\nexpires = \"tomorrow\""),
        "expires: \"tomorrow\" is not a time with a UTC offset, such as 2027-01-31T00:00:00Z"
    );
    assert!(at("devices = []\nexpires = 2027-01-31").starts_with("expires: \"2027-01-31\" is not a time"));
    assert_eq!(at("devices = []\ncertificate = \"*\""), "expected either token_sha256 or certificate");
    let twice = entry(ANY) + &entry(ANY);
    assert_eq!(problem(&twice), "sender 2 (\"a\"): name: an earlier sender has it");
    let twice = entry(ANY) + &entry(ANY).replace("\"a\"", "\"b\"");
    assert_eq!(problem(&twice), "sender 2 (\"b\"): token_sha256: an earlier sender has this token");
    assert!(problem(&entry("devices = []\nkind = []")).starts_with("line 5: unknown field `kind`"));
    assert_eq!(
        problem("[[sender]]\nname = \"a b\"\n"),
        "sender 1 (\"a b\"): name: expected 1 to 64 of a-z A-Z 0-9 . _ -"
    );
    assert_eq!(
        problem("[anonymous]\n"),
        "[anonymous]: devices: missing; name them, such as [\"boiler-*\"], or allow all with [\"*\"]"
    );
    // The file of earlier versions.
    assert!(problem(&format!("roof {}\n", hash("t"))).starts_with("line 1: "));
    let plain = file("[[sender]]\nname = \"a\"\ncertificate = \"*\"\n");
    let error = Access::new(Some(plain.path()), false, 10).err().unwrap().to_string();
    assert!(
        error.ends_with("sender 1 (\"a\"): certificate: there are none without the setting tls_client_ca"),
        "{error}"
    );
}
