mod gateway;

use garenne_common::config::Certificates;
use garenne_protocol::{
    sensor::{Reading, Timestamp},
    task::TaskId,
};

use super::*;
use crate::destination::SendError;
use gateway::{TOKEN, TestGateway};

fn readings(devices: &[&str]) -> Vec<Reading> {
    let time = Timestamp::parse("2026-11-20T07:30:00Z").unwrap();
    let reading = |device: &&str| Reading {
        device: (*device).into(),
        metric: "temperature".into(),
        value: 21.5,
        unit: None,
        counter: None,
        time,
    };
    devices.iter().map(reading).collect()
}

fn token_file(token: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), token).unwrap();
    file
}

async fn send(
    to: &str,
    token: Option<&str>,
    certificates: &Certificates,
    devices: &[&str],
) -> Result<Vec<TaskId>, SendError> {
    let file = token.map(token_file);
    let token = file.as_ref().map(|file| Token::of(file.path().to_owned()).unwrap());
    let endpoint = Endpoint::gateway(to, token, certificates).unwrap();
    endpoint.destination.send(&readings(devices)).await
}

#[tokio::test]
async fn readings_arrive_with_a_token_over_http_and_lines_with_and_without_tls() {
    let gateway = TestGateway::start(false).await;
    for (number, scheme) in ["http", "https", "tcp", "tls"].into_iter().enumerate() {
        let certificates = match scheme {
            "https" | "tls" => gateway.trusted(),
            _ => Certificates::default(),
        };
        let ids = send(&gateway.url(scheme), Some(TOKEN), &certificates, &["a", "b"]).await;
        assert_eq!(ids.map(|ids| ids.len()), Ok(2), "{scheme}");
        assert_eq!(gateway.devices().len(), 2 * (number + 1), "{scheme}");
    }
    assert_eq!(gateway.devices()[6..], ["a", "b"]);
}

#[tokio::test]
async fn a_connection_of_lines_is_authenticated_once_and_survives_a_refused_reading() {
    let gateway = TestGateway::start(false).await;
    let certificates = gateway.trusted();
    let file = token_file(TOKEN);
    let token = Token::of(file.path().to_owned()).unwrap();
    let endpoint = Endpoint::gateway(&gateway.url("tls"), Some(token), &certificates).unwrap();
    let sender = endpoint.for_sender();
    let error = sender.send(&readings(&["a", "", "c"])).await.unwrap_err();
    assert!(
        matches!(&error, SendError::InvalidReading { index: 1, reason } if reason.contains("device")),
        "{error:?}"
    );
    assert_eq!(sender.send(&readings(&["a", "c"])).await.unwrap().len(), 2);
    assert_eq!(gateway.devices(), ["a", "c", "a", "c"]);
}

#[tokio::test]
async fn a_refused_token_or_no_token_ends_the_sending_at_once() {
    let gateway = TestGateway::start(false).await;
    for scheme in ["http", "https", "tcp", "tls"] {
        let certificates = match scheme {
            "https" | "tls" => gateway.trusted(),
            _ => Certificates::default(),
        };
        for token in [Some("guessed"), None] {
            let error = send(&gateway.url(scheme), token, &certificates, &["a", "b", "c"]).await.unwrap_err();
            let SendError::Fatal(failure) = &error else { panic!("{scheme} {token:?}: {error:?}") };
            let named = failure.line.contains("401") || failure.line.contains("unauthorized");
            assert!(named && !failure.line.contains("guessed"), "{failure}");
        }
    }
    assert!(gateway.devices().is_empty());
}

#[tokio::test]
async fn a_token_that_was_accepted_is_read_again_from_its_file() {
    let gateway = TestGateway::start(false).await;
    for scheme in ["http", "tcp"] {
        let file = token_file(TOKEN);
        let token = Token::of(file.path().to_owned()).unwrap();
        let endpoint =
            Endpoint::gateway(&gateway.url(scheme), Some(token), &Certificates::default()).unwrap();
        // Each sender has a connection of its own.
        let send = async |device| endpoint.for_sender().send(&readings(&[device])).await;
        assert!(send("a").await.is_ok());
        for content in ["another", ""] {
            std::fs::write(file.path(), content).unwrap();
            let error = send("b").await.unwrap_err();
            assert!(matches!(error, SendError::Retry { .. }), "{scheme}: {error:?}");
        }
        std::fs::write(file.path(), TOKEN).unwrap();
        assert!(send("c").await.is_ok());
    }
}

#[tokio::test]
async fn a_gateway_of_an_unknown_authority_gets_no_token_and_no_reading() {
    let gateway = TestGateway::start(false).await;
    let other = TestGateway::start(false).await;
    for scheme in ["https", "tls"] {
        let error = send(&gateway.url(scheme), Some(TOKEN), &other.trusted(), &["a"]).await.unwrap_err();
        let SendError::Retry { reason, .. } = &error else { panic!("{scheme}: {error:?}") };
        assert!(reason.contains("certificate"), "{reason}");
    }
    assert!(gateway.devices().is_empty());
}

#[tokio::test]
async fn a_client_certificate_authenticates_its_device() {
    let mut gateway = TestGateway::start(true).await;
    let certificates = gateway.signed("pump");
    for scheme in ["https", "tls"] {
        let sent = send(&gateway.url(scheme), None, &certificates, &["pump"]).await;
        assert_eq!(sent.map(|ids| ids.len()), Ok(1), "{scheme}");
        let error = send(&gateway.url(scheme), None, &certificates, &["roof"]).await.unwrap_err();
        assert!(matches!(&error, SendError::InvalidReading { index: 0, .. }), "{error:?}");
        // Without a certificate the handshake fails.
        let error = send(&gateway.url(scheme), None, &gateway.trusted(), &["pump"]).await.unwrap_err();
        assert!(matches!(&error, SendError::Retry { .. }), "{error:?}");
    }
    assert_eq!(gateway.devices(), ["pump", "pump"]);
}

#[tokio::test]
async fn a_client_certificate_is_read_again_when_its_files_change() {
    let mut gateway = TestGateway::start(true).await;
    let mut other = TestGateway::start(true).await;
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| Some(folder.path().join(name));
    let certificates = Certificates { ca: gateway.trusted().ca, cert: file("cert"), key: file("key") };
    let rotate = |signed: Certificates| {
        for (from, to) in [(signed.cert, &certificates.cert), (signed.key, &certificates.key)] {
            std::fs::copy(from.unwrap(), to.as_ref().unwrap()).unwrap();
        }
    };
    for scheme in ["https", "tls"] {
        // Of an authority that the gateway does not trust.
        rotate(other.signed("pump"));
        let endpoint = Endpoint::gateway(&gateway.url(scheme), None, &certificates).unwrap();
        let send = async |device| endpoint.for_sender().send(&readings(&[device])).await;
        let error = send("pump").await.unwrap_err();
        assert!(matches!(&error, SendError::Retry { .. }), "{scheme}: {error:?}");
        for device in ["pump", "roof"] {
            rotate(gateway.signed(device));
            assert_eq!(send(device).await.map(|ids| ids.len()), Ok(1), "{scheme}");
        }
        // Files that do not match, as while they are being replaced.
        std::fs::copy(other.signed("pump").cert.unwrap(), certificates.cert.as_ref().unwrap()).unwrap();
        assert!(send("roof").await.is_ok(), "{scheme}");
    }
}

#[test]
fn urls_and_files_that_do_not_fit_are_usage_errors() {
    let ca = Certificates { ca: Some("ca.pem".into()), ..Certificates::default() };
    let none = Certificates::default();
    let refused = |to: &str, certificates: &Certificates| {
        let failure = Endpoint::gateway(to, None, certificates).err().unwrap();
        (failure.exit, failure.line)
    };
    let expected = "expected http://, https://, tcp://, tls://, mqtt:// or mqtts:// and HOST:PORT";
    for to in ["ftp://h:1", "h:1", ""] {
        assert_eq!(refused(to, &none), (Exit::Usage, format!("--to {to} is invalid, {expected}")));
    }
    for to in ["tcp://h", "tls://h", "tcp://h:99999", "tcp://:1"] {
        let (exit, line) = refused(to, &none);
        assert!(exit == Exit::Usage && line.ends_with("expected HOST:PORT"), "{line}");
    }
    let (exit, line) = refused("https://user:s3cret@h:1", &none);
    assert_eq!(exit, Exit::Usage);
    assert_eq!(line, "--to has a user or a password, give a token with --token-file");
    for to in ["http://h:1", "tcp://h:1"] {
        let problem = format!("--ca, --cert and --key need https:// or tls://, --to is {to}");
        assert_eq!(refused(to, &ca), (Exit::Usage, problem));
    }
    let problem = "--ca, --cert and --key need mqtts://, --to is mqtt://".to_owned();
    assert_eq!(refused("mqtt://user:s3cret@h", &ca), (Exit::Usage, problem));
    let (exit, line) = refused("mqtt://user:s3cret@h/topic", &none);
    assert!(exit == Exit::Usage && !line.contains("s3cret"), "{line}");
    let file = token_file("token");
    let token = Token::of(file.path().to_owned()).unwrap();
    let with_token = Endpoint::gateway("mqtt://h", Some(token), &none).err().unwrap();
    assert_eq!(with_token.line, "--token-file needs a gateway, an MQTT broker has user and password");
    let open = Endpoint::gateway("mqtts://user:s3cret@h", None, &ca).ok().unwrap();
    assert!(!open.name.contains("s3cret"), "{}", open.name);
    let (exit, line) = refused("https://h:1", &ca);
    assert!(exit == Exit::Config && line.starts_with("--ca: cannot use ca.pem: "), "{line}");
}
