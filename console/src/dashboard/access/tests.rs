use std::path::PathBuf;

use axum::http::header;
use prometheus::{IntCounterVec, Opts};
use tempfile::TempDir;

use super::*;
use crate::settings::DashboardConfig;

const PASSWORD: &str = "correct horse battery";

/// A dashboard's access, its files, and a client at one address.
struct Site {
    access: Access,
    logins: IntCounterVec,
    folder: TempDir,
}

/// The headers that a browser sends.
#[derive(Clone, Default)]
struct Client {
    extensions: Extensions,
    headers: HeaderMap,
}

impl Client {
    fn at(address: &str) -> Self {
        let mut client = Self::default();
        client.extensions.insert(ConnectInfo(SocketAddr::new(address.parse().unwrap(), 1)));
        client
    }

    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.insert(name, value.parse().unwrap());
        self
    }
}

impl Site {
    fn new(settings: DashboardConfig, people: Option<&str>, token: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: Option<&str>| -> Option<PathBuf> {
            let path = folder.path().join(name);
            std::fs::write(&path, text?).unwrap();
            Some(path)
        };
        let operators = file("operators", people);
        let mut config =
            ConsoleConfig { dashboard: DashboardConfig { operators, ..settings }, ..Default::default() };
        config.fleet.common.admin_token_file = file("token", token);
        let logins = IntCounterVec::new(Opts::new("logins", "help"), &["result"]).unwrap();
        let access = Access::new(&config, logins.clone()).unwrap();
        Self { access, logins, folder }
    }

    fn with_people() -> Self {
        Self::new(DashboardConfig::default(), Some(&people("operator")), None)
    }

    async fn log_in(&self, client: &Client, name: &str, password: &str) -> Result<Client, StatusCode> {
        let body = json!({ "name": name, "password": password });
        self.log_in_with(client, body).await
    }

    async fn log_in_with(&self, client: &Client, body: Value) -> Result<Client, StatusCode> {
        let given = serde_json::from_value(body).unwrap();
        let login = self.access.login(&client.extensions, &client.headers, given).await;
        let cookie = login.map_err(|problem| problem.status())?;
        Ok(client.clone().with("cookie", cookie.split(';').next().unwrap()))
    }

    /// The client with the CSRF token of its session.
    fn with_csrf(&self, client: Client) -> Client {
        let (session, _) = self.access.session(&client.extensions, &client.headers);
        client.with(CSRF, session["csrf"].as_str().expect("a session"))
    }

    fn act(&self, client: &Client) -> Result<String, StatusCode> {
        let acts = self.access.may_act(Role::Operator, &client.extensions, &client.headers);
        acts.map(|requester| requester.name).map_err(|problem| problem.status())
    }

    fn view(&self, client: &Client) -> Result<(), StatusCode> {
        self.access.may_view(&client.extensions, &client.headers).map_err(|problem| problem.status())
    }

    fn count(&self, result: &str) -> u64 {
        self.logins.with_label_values(&[result]).get()
    }
}

fn people(role: &str) -> String {
    let hash = accounts::hashed(PASSWORD);
    format!("anna {role} {hash}\nben viewer {hash}\ncarl operator -\n")
}

#[tokio::test]
async fn a_command_needs_a_session_its_csrf_token_and_the_role() {
    let site = Site::with_people();
    let client = Client::at("192.0.2.1");
    assert_eq!(site.act(&client), Err(StatusCode::UNAUTHORIZED));
    let anna = site.log_in(&client, "anna", PASSWORD).await.unwrap();
    assert_eq!(site.act(&anna), Err(StatusCode::FORBIDDEN), "without the CSRF token");
    assert_eq!(site.act(&anna.clone().with(CSRF, "x")), Err(StatusCode::FORBIDDEN));
    let anna = site.with_csrf(anna);
    assert_eq!(site.act(&anna), Ok("anna".to_owned()));
    for site_of_sender in ["cross-site", "same-site"] {
        assert_eq!(
            site.act(&anna.clone().with("sec-fetch-site", site_of_sender)),
            Err(StatusCode::FORBIDDEN)
        );
    }
    let ben = site.with_csrf(site.log_in(&client, "ben", PASSWORD).await.unwrap());
    assert_eq!(site.act(&ben), Err(StatusCode::FORBIDDEN), "a viewer");
    assert!(site.access.may_act(Role::Viewer, &ben.extensions, &ben.headers).is_ok(), "may log out");
    // Ben's CSRF token does not fit Anna's session.
    let mixed = anna.clone().with(CSRF, ben.headers[CSRF].to_str().unwrap());
    assert_eq!(site.act(&mixed), Err(StatusCode::FORBIDDEN));
    site.access.logout(&anna.headers);
    assert_eq!(site.act(&anna), Err(StatusCode::UNAUTHORIZED));
}

#[tokio::test]
async fn only_the_right_password_logs_in() {
    let site = Site::with_people();
    let client = Client::at("192.0.2.1");
    for (name, password) in
        [("anna", "wrong horse battery"), ("anna", ""), ("eve", PASSWORD), ("carl", "-"), ("carl", "")]
    {
        assert_eq!(
            site.log_in(&client, name, password).await.err(),
            Some(StatusCode::UNAUTHORIZED),
            "{name}"
        );
    }
    assert_eq!(site.count("wrong"), 5);
    let token = site.log_in_with(&client, json!({ "token": "t" })).await;
    assert_eq!(token.err(), Some(StatusCode::BAD_REQUEST), "the token is for dashboards without people");
    let foreign = client.clone().with("sec-fetch-site", "cross-site");
    assert_eq!(site.log_in(&foreign, "anna", PASSWORD).await.err(), Some(StatusCode::FORBIDDEN));
    assert!(site.log_in(&client, "anna", PASSWORD).await.is_ok());
    assert_eq!(site.count("success"), 1);
}

#[tokio::test]
async fn an_address_that_guesses_is_stopped_and_does_not_lock_out_the_others() {
    let site = Site::with_people();
    let (guesser, other) = (Client::at("192.0.2.1"), Client::at("192.0.2.2"));
    let mut last = None;
    for _ in 0..11 {
        last = site.log_in(&guesser, "anna", "guess").await.err();
    }
    assert_eq!(last, Some(StatusCode::TOO_MANY_REQUESTS));
    assert_eq!(site.log_in(&guesser, "anna", PASSWORD).await.err(), Some(StatusCode::TOO_MANY_REQUESTS));
    assert!(site.log_in(&other, "anna", PASSWORD).await.is_ok());
    assert_eq!((site.count("wrong"), site.count("limited")), (10, 2));
}

#[tokio::test]
async fn a_changed_file_changes_open_sessions() {
    let site = Site::with_people();
    let client = Client::at("192.0.2.1");
    let anna = site.with_csrf(site.log_in(&client, "anna", PASSWORD).await.unwrap());
    let ben = site.with_csrf(site.log_in(&client, "ben", PASSWORD).await.unwrap());
    let file = site.folder.path().join("operators");
    std::fs::write(&file, "broken\n").unwrap();
    assert_eq!(site.act(&anna), Ok("anna".to_owned()), "an invalid file changes nothing");
    let text =
        people("viewer").lines().filter(|line| !line.starts_with("ben")).collect::<Vec<_>>().join("\n");
    std::fs::write(&file, &text).unwrap();
    // The hashes are new ones, so that Anna logs in again.
    assert_eq!(site.act(&anna), Err(StatusCode::UNAUTHORIZED));
    assert_eq!(site.act(&ben), Err(StatusCode::UNAUTHORIZED));
    let anna = site.with_csrf(site.log_in(&client, "anna", PASSWORD).await.unwrap());
    assert_eq!(site.act(&anna), Err(StatusCode::FORBIDDEN), "a viewer now");
    assert!(site.log_in(&client, "ben", PASSWORD).await.is_err());
    std::fs::write(&file, text.replace("anna viewer", "anna operator")).unwrap();
    assert_eq!(site.act(&anna), Ok("anna".to_owned()), "the role of the file, in the same session");
}

#[tokio::test]
async fn viewing_can_require_a_login() {
    let settings = DashboardConfig { require_login: true, ..DashboardConfig::default() };
    let site = Site::new(settings, Some(&people("operator")), None);
    let client = Client::at("192.0.2.1");
    assert_eq!(site.view(&client), Err(StatusCode::UNAUTHORIZED));
    assert_eq!(site.view(&client.clone().with("cookie", "garenne_session=x")), Err(StatusCode::UNAUTHORIZED));
    assert_eq!(site.view(&site.log_in(&client, "ben", PASSWORD).await.unwrap()), Ok(()));
    assert_eq!(Site::with_people().view(&client), Ok(()));
}

#[tokio::test]
async fn a_read_only_dashboard_obeys_nobody() {
    let settings = DashboardConfig { read_only: true, ..DashboardConfig::default() };
    let site = Site::new(settings, Some(&people("operator")), None);
    let anna = site.with_csrf(site.log_in(&Client::at("192.0.2.1"), "anna", PASSWORD).await.unwrap());
    assert_eq!(site.act(&anna), Err(StatusCode::FORBIDDEN));
    assert!(site.access.is_read_only());
    let without = Site::new(DashboardConfig::default(), None, None);
    assert!(without.access.is_read_only(), "nobody can log in");
    let login = without.log_in_with(&Client::default(), json!({ "token": "" })).await;
    assert_eq!(login.err(), Some(StatusCode::FORBIDDEN));
}

#[tokio::test]
async fn the_admin_token_is_a_login_without_a_file_of_people() {
    let site = Site::new(DashboardConfig::default(), None, Some("t0ken\n"));
    assert!(!site.access.is_read_only());
    let client = Client::at("192.0.2.1");
    let log_in = async |body| site.log_in_with(&client, body).await;
    assert_eq!(log_in(json!({ "token": "t0kem" })).await.err(), Some(StatusCode::UNAUTHORIZED));
    assert_eq!(log_in(json!({ "name": "a", "password": "b" })).await.err(), Some(StatusCode::UNAUTHORIZED));
    let anybody = site.with_csrf(log_in(json!({ "token": "t0ken " })).await.unwrap());
    assert_eq!(site.act(&anybody), Ok(TOKEN_USER.to_owned()));
}

#[tokio::test]
async fn a_person_whom_a_trusted_proxy_names_needs_no_password_but_a_csrf_token() {
    let settings = || DashboardConfig {
        trusted_proxies: vec!["10.0.0.0/24".parse().unwrap()],
        require_login: true,
        ..DashboardConfig::default()
    };
    let site = Site::new(settings(), Some(&people("operator")), None);
    let carl = Client::at("10.0.0.5").with("x-forwarded-user", "carl").with("x-forwarded-for", "192.0.2.9");
    assert_eq!(site.view(&carl), Ok(()));
    assert_eq!(site.act(&carl), Err(StatusCode::UNAUTHORIZED), "no session yet");
    let (session, cookie) = site.access.session(&carl.extensions, &carl.headers);
    assert_eq!(
        (&session["name"], &session["role"], &session["by_proxy"]),
        (&json!("carl"), &json!("operator"), &json!(true))
    );
    let carl = carl.with("cookie", cookie.unwrap().split(';').next().unwrap());
    assert_eq!(
        site.act(&carl),
        Err(StatusCode::FORBIDDEN),
        "the proxy adds its header to a foreign page's request too"
    );
    let carl = carl.with(CSRF, session["csrf"].as_str().unwrap());
    assert_eq!(site.act(&carl), Ok("carl".to_owned()));
    let requester = site.access.may_act(Role::Operator, &carl.extensions, &carl.headers).unwrap();
    assert_eq!(requester.actor().address.as_deref(), Some("192.0.2.9"));
    // The session of one person and the name of another: someone else uses the browser now.
    assert_eq!(site.act(&carl.clone().with("x-forwarded-user", "anna")), Err(StatusCode::UNAUTHORIZED));
    // The cookie alone, past the proxy.
    let past = Client { headers: carl.headers, ..Client::at("192.0.2.9") };
    assert_eq!(
        (site.act(&past), site.view(&past)),
        (Err(StatusCode::UNAUTHORIZED), Err(StatusCode::UNAUTHORIZED))
    );
    assert!(!past.headers[header::COOKIE].is_empty());
}

#[tokio::test]
async fn a_token_that_changes_in_its_file_ends_the_sessions_of_the_old_one() {
    let site = Site::new(DashboardConfig::default(), None, Some("first"));
    let client = Client::at("192.0.2.1");
    let old = site.with_csrf(site.log_in_with(&client, json!({ "token": "first" })).await.unwrap());
    assert_eq!(site.act(&old), Ok("admin-token".to_owned()));
    std::fs::write(site.folder.path().join("token"), "the second\n").unwrap();
    assert_eq!(site.act(&old), Err(StatusCode::UNAUTHORIZED));
    let again = site.log_in_with(&client, json!({ "token": "first" })).await;
    assert_eq!(again.err(), Some(StatusCode::UNAUTHORIZED));
    let new = site.with_csrf(site.log_in_with(&client, json!({ "token": "the second" })).await.unwrap());
    assert_eq!(site.act(&new), Ok("admin-token".to_owned()));
}
