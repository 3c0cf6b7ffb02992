//! Credentials of a webhook that change in their files.

use std::fs;

use super::{
    server::{Reaction::Answer, Server},
    *,
};

const OTHER: &str = "whsec_YW5vdGhlcktleU9mVHdlbnR5Rm91ckJ5dGVz";

#[tokio::test]
async fn a_secret_and_a_header_that_change_in_their_files_are_used_for_the_next_alert() {
    let folder = tempfile::tempdir().unwrap();
    let (secret, header) = (folder.path().join("secret"), folder.path().join("header"));
    fs::write(&secret, SECRET).unwrap();
    fs::write(&header, "Bearer first").unwrap();
    // The receiver has the new secret before the file.
    let server = Server::start([Answer(200, ""), Answer(401, "")]).await;
    let mut settings = AlertSettings { retries: 0, ..settings(&server.url) };
    settings.read_from("alert.webhooks.default.secret", &secret);
    settings.read_from("alert.webhooks.default.headers.authorization", &header);
    let sender = sender(settings);
    deliver(&sender, "a").await.unwrap();
    let refused = deliver(&sender, "b").await.unwrap_err();
    assert!(matches!(*refused, DeliveryError::ServerError { status: 401, .. }), "is tried again: {refused}");
    fs::write(&secret, OTHER).unwrap();
    fs::write(&header, "Bearer the second").unwrap();
    deliver(&sender, "b").await.unwrap();
    // A file that is invalid for a moment does no harm.
    fs::write(&secret, "").unwrap();
    deliver(&sender, "c").await.unwrap();
    let requests = server.requests();
    let signed_with = |n: usize, secret: &str| {
        let request = &requests[n];
        let (id, at) = (request.header("webhook-id"), request.header("webhook-timestamp"));
        let secret: SigningSecret = secret.parse().unwrap();
        let signature = secret.sign(id, at.parse().unwrap(), request.body.as_bytes());
        assert_eq!(request.header("webhook-signature"), signature, "request {n}");
    };
    (0..2).for_each(|n| signed_with(n, SECRET));
    (2..4).for_each(|n| signed_with(n, OTHER));
    let tokens: Vec<_> = requests.iter().map(|request| request.header("authorization")).collect();
    assert_eq!(tokens, ["Bearer first", "Bearer first", "Bearer the second", "Bearer the second"]);
}
