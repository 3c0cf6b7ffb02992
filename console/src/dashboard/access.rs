//! Access to the dashboard and to its commands.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use axum::{
    extract::ConnectInfo,
    http::{Extensions, HeaderMap, StatusCode},
};
use garenne_common::{
    config::{ConfigError, reloaded_secret},
    reloaded::Reloaded,
    resilience::Semaphore,
    supervise,
    telemetry::admin::Visitor,
};
use prometheus::IntCounterVec;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    login_limit::LoginLimit,
    problem::Problem,
    proxy_login::ProxyLogin,
    session::{Session, Sessions, same},
    user::{Login, Requester, TOKEN_USER, User},
};
use crate::{
    accounts::{self, Account, Accounts, PasswordHash, Role},
    settings::ConsoleConfig,
};

/// The header with the CSRF token.
pub(super) const CSRF: &str = "x-garenne-csrf";
/// Passwords that are checked at once. A check takes a core and 19 MiB.
const MAX_CHECKS: usize = 2;
/// How long a login waits for the others.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// Rules of access to the page and to its commands.
pub(super) struct Access {
    /// The one token that everybody logs in with, if there is no file of operators.
    token: Option<Reloaded<SecretString>>,
    accounts: Option<Reloaded<Accounts>>,
    proxies: ProxyLogin,
    sessions: Sessions,
    limit: LoginLimit,
    checks: Semaphore,
    /// Logins by result.
    logins: IntCounterVec,
    require_login: bool,
    read_only: bool,
}

/// The body of a login: a name and a password, or the admin token.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Credentials {
    #[serde(default)]
    name: String,
    #[serde(default)]
    password: SecretString,
    token: Option<SecretString>,
}

/// The sender of a request, as far as it is known.
struct Sender {
    address: IpAddr,
    user: Option<User>,
    /// The session that `user` was found in.
    session: Option<Session>,
}

impl Access {
    /// The access that the settings give. `logins` has the label `result`.
    pub(super) fn new(config: &ConsoleConfig, logins: IntCounterVec) -> Result<Self, ConfigError> {
        let settings = &config.dashboard;
        let accounts = settings
            .operators
            .clone()
            .map(|path| Reloaded::new("operators", vec![path.clone()], move || accounts::read(&path)));
        let accounts = accounts.transpose()?;
        let token_file = config.fleet.common.admin_token_file.clone().filter(|_| accounts.is_none());
        let token = token_file.map(|path| reloaded_secret("admin_token_file", path)).transpose()?;
        for result in ["success", "wrong", "limited", "busy"] {
            logins.with_label_values(&[result]);
        }
        Ok(Self {
            token,
            accounts,
            proxies: ProxyLogin::new(settings),
            sessions: Sessions::new(settings.tls_cert.is_some()),
            limit: LoginLimit::default(),
            checks: Semaphore::new(MAX_CHECKS, CHECK_TIMEOUT),
            logins,
            require_login: settings.require_login,
            read_only: settings.read_only,
        })
    }

    /// Whether all commands are refused. The program then writes nothing to the broker.
    pub(super) fn is_read_only(&self) -> bool {
        self.read_only || !self.is_possible()
    }

    /// Whether there is a way to log in.
    fn is_possible(&self) -> bool {
        self.token.is_some() || self.accounts.is_some() || self.proxies.is_configured()
    }

    fn sender(&self, extensions: &Extensions, headers: &HeaderMap) -> Sender {
        let peer = extensions.get::<ConnectInfo<SocketAddr>>();
        let peer = peer.map_or(Ipv4Addr::UNSPECIFIED.into(), |ConnectInfo(peer)| peer.ip());
        let address = self.proxies.client(peer, headers);
        self.accounts.iter().for_each(Reloaded::refresh);
        self.token.iter().for_each(Reloaded::refresh);
        let accounts = self.accounts.as_ref().map(Reloaded::get);
        let by_proxy = self.proxies.user(peer, headers, accounts.as_deref());
        let session = self.sessions.of(headers);
        let of_session = session.as_ref().and_then(|session| {
            let User { name, login, .. } = &session.user;
            match login {
                // A login with a former token has ended.
                Login::Token(generation) => {
                    let current = self.token.as_ref().map(Reloaded::generation) == Some(*generation);
                    current.then(|| session.user.clone())
                }
                Login::Proxy => by_proxy.clone().filter(|user| user.name == *name),
                // As the file has the person now.
                Login::Password(hash) => {
                    let account = accounts.as_ref()?.get(name)?;
                    let same = account.password.as_ref() == Some(hash);
                    same.then(|| User {
                        role: account.role,
                        may_look: account.may_look,
                        ..session.user.clone()
                    })
                }
            }
        });
        let session = session.filter(|_| of_session.is_some());
        Sender { address, user: of_session.or(by_proxy), session }
    }

    /// Who sends a request: its address, and whether it is a person who is logged in.
    pub(super) fn visitor(&self, extensions: &Extensions, headers: &HeaderMap) -> Visitor {
        let Sender { address, user, .. } = self.sender(extensions, headers);
        Visitor { address, known: user.is_some() }
    }

    /// Checks that a request may read.
    pub(super) fn may_view(&self, extensions: &Extensions, headers: &HeaderMap) -> Result<(), Problem> {
        if !self.require_login || self.sender(extensions, headers).user.is_some() {
            return Ok(());
        }
        Err(Problem::new(
            StatusCode::UNAUTHORIZED,
            "not logged in: this dashboard shows nothing without a login",
        ))
    }

    /// Checks that a request may change something, and returns who sends it. Another site's page may not.
    pub(super) fn may_act(
        &self,
        needed: Role,
        extensions: &Extensions,
        headers: &HeaderMap,
    ) -> Result<Requester, Problem> {
        same_site(headers)?;
        let Sender { address, user, session } = self.sender(extensions, headers);
        let Some((User { name, role, may_look, .. }, session)) = user.zip(session) else {
            return Err(Problem::new(StatusCode::UNAUTHORIZED, "not logged in"));
        };
        let given = headers.get(CSRF).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if !same(given, &session.csrf) {
            let detail = format!("header {CSRF} is missing or wrong: GET /api/session returns the value");
            return Err(Problem::new(StatusCode::FORBIDDEN, detail));
        }
        if needed > Role::Viewer && self.read_only {
            return Err(Problem::new(StatusCode::FORBIDDEN, "this dashboard is read-only"));
        }
        if role < needed {
            let detail = format!("{name} has the role {role}, this needs the role {needed}");
            return Err(Problem::new(StatusCode::FORBIDDEN, detail));
        }
        Ok(Requester { name, address, may_look })
    }

    /// Logs a person in. Returns the cookie to set. Refuses an address that failed too often.
    pub(super) async fn login(
        &self,
        extensions: &Extensions,
        headers: &HeaderMap,
        given: Credentials,
    ) -> Result<String, Problem> {
        same_site(headers)?;
        let address = self.sender(extensions, headers).address;
        let count = |result: &str| self.logins.with_label_values(&[result]).inc();
        let attempt = self.limit.begin(address).inspect_err(|_| {
            count("limited");
            tracing::warn!(%address, "login refused: this address failed too often");
        })?;
        let name = given.name.clone();
        match self.check(given).await {
            Ok(user) => {
                attempt.succeeded();
                count("success");
                tracing::info!(name = user.name, role = %user.role, %address, "login to the dashboard");
                Ok(self.sessions.start(user).1)
            }
            Err(problem) => {
                let busy = problem.status() == StatusCode::SERVICE_UNAVAILABLE;
                count(if busy { "busy" } else { "wrong" });
                // Only names of the file: a person may have typed the password into the wrong field.
                let known = self.accounts.as_ref().is_some_and(|accounts| accounts.get().contains_key(&name));
                let name = if known { &name } else { "unknown" };
                tracing::warn!(name, %address, "failed login to the dashboard");
                Err(problem)
            }
        }
    }

    async fn check(&self, given: Credentials) -> Result<User, Problem> {
        let Some(accounts) = &self.accounts else { return self.check_token(given.token) };
        let Credentials { name, password, token: None } = given else {
            let detail = "expected name and password: this dashboard has a file of operators";
            return Err(Problem::bad_request(detail));
        };
        let account = accounts.get().get(&name).cloned();
        let found =
            account.and_then(|Account { role, may_look, password }| Some((role, may_look, password?)));
        let busy = || Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too many logins at once: try again");
        let permit = self.checks.acquire().await.map_err(|_| busy())?;
        let hash = found.as_ref().map(|(.., hash)| hash.clone());
        let checked = supervise::spawn_blocking("password", move || {
            // Held until the check ends, also if the client has gone away.
            let _permit = permit;
            match hash {
                Some(hash) => hash.matches(password.expose_secret()),
                None => {
                    PasswordHash::waste_time(password.expose_secret());
                    false
                }
            }
        });
        match (checked.await, found) {
            (Ok(true), Some((role, may_look, hash))) => {
                Ok(User { name, role, may_look, login: Login::Password(hash) })
            }
            (Ok(_), _) => Err(Problem::new(StatusCode::UNAUTHORIZED, "wrong name or password")),
            (Err(_), _) => Err(busy()),
        }
    }

    fn check_token(&self, given: Option<SecretString>) -> Result<User, Problem> {
        let Some(token) = &self.token else {
            let detail = "there is no login with a token: set --operators, or --admin-token-file to a file with a token";
            return Err(Problem::new(StatusCode::FORBIDDEN, detail));
        };
        // Before the token is read: if it changes meanwhile, the session ends rather than outlives it.
        let login = Login::Token(token.generation());
        if given.is_some_and(|given| same(given.expose_secret().trim(), token.get().expose_secret())) {
            return Ok(User { name: TOKEN_USER.to_owned(), role: Role::Operator, may_look: false, login });
        }
        Err(Problem::new(StatusCode::UNAUTHORIZED, "wrong admin token"))
    }

    /// Ends the request's session. Returns the cookie that removes its cookie.
    pub(super) fn logout(&self, headers: &HeaderMap) -> String {
        self.sessions.end(headers)
    }

    /// What the page needs to know about the sender, and a cookie to set: a person whom a proxy names gets a session,
    /// whose CSRF token commands need.
    pub(super) fn session(&self, extensions: &Extensions, headers: &HeaderMap) -> (Value, Option<String>) {
        let Sender { user, mut session, .. } = self.sender(extensions, headers);
        let mut cookie = None;
        if let (Some(user), None) = (&user, &session)
            && same_site(headers).is_ok()
        {
            let (started, set) = self.sessions.start(user.clone());
            (session, cookie) = (Some(started), Some(set));
        }
        let commands = user.as_ref().is_some_and(|user| user.role >= Role::Operator) && !self.read_only;
        let body = json!({
            "possible": self.is_possible(),
            "with": if self.accounts.is_some() { "password" } else { "token" },
            "required": self.require_login,
            "name": user.as_ref().map(|user| &user.name),
            "role": user.as_ref().map(|user| user.role),
            "commands": commands,
            "queues": user.as_ref().is_some_and(|user| user.may_look) && !self.read_only,
            "by_proxy": user.is_some_and(|user| matches!(user.login, Login::Proxy)),
            "csrf": session.map(|session| session.csrf),
        });
        (body, cookie)
    }
}

/// Refuses requests that a page of another site started, as the browser reports it.
fn same_site(headers: &HeaderMap) -> Result<(), Problem> {
    match headers.get("sec-fetch-site").map(|value| value.as_bytes()) {
        None | Some(b"same-origin" | b"none") => Ok(()),
        Some(_) => Err(Problem::new(StatusCode::FORBIDDEN, "cross-site request refused")),
    }
}

#[cfg(test)]
mod tests;
