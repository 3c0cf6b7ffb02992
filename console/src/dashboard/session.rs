//! Sessions for actions. A login with the admin token sets a cookie that scripts cannot read. Every action also
//! sends the session's CSRF token, which other sites cannot read.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::http::{HeaderMap, StatusCode, header};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use secrecy::{ExposeSecret, SecretString};
use subtle::ConstantTimeEq;
use tokio::time::Instant;

use super::problem::Problem;

const COOKIE: &str = "garenne_session";
/// The header with the CSRF token.
pub(super) const CSRF: &str = "x-garenne-csrf";
/// Lifetime of a session: longer than a working day.
const LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// Limit on sessions. A new one ends the oldest.
const MAX_SESSIONS: usize = 64;
/// Limit on failed logins of all clients within [`FAILURE_WINDOW`]. Beyond it, tokens are not compared.
const MAX_FAILURES: usize = 10;
const FAILURE_WINDOW: Duration = Duration::from_secs(60);

/// All sessions of this process.
pub(super) struct Sessions {
    token: Option<SecretString>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    open: VecDeque<Session>,
    failures: VecDeque<Instant>,
}

struct Session {
    id: String,
    csrf: String,
    until: Instant,
}

fn secret() -> String {
    BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>())
}

fn same(a: &str, b: &str) -> bool {
    a.as_bytes().ct_eq(b.as_bytes()).into()
}

impl Sessions {
    pub(super) fn new(token: Option<SecretString>) -> Self {
        Self { token, inner: Mutex::default() }
    }

    /// Whether there is a token to log in with.
    pub(super) fn possible(&self) -> bool {
        self.token.is_some()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a session and returns the cookie to set.
    pub(super) fn login(&self, given: &str) -> Result<String, Problem> {
        let Some(token) = &self.token else {
            let detail = "actions are disabled: set --admin-token-file or GARENNE_ADMIN_TOKEN_FILE to a file with a token";
            return Err(Problem::new(StatusCode::FORBIDDEN, detail));
        };
        let now = Instant::now();
        let mut inner = self.inner();
        inner.failures.retain(|at| now - *at < FAILURE_WINDOW);
        if inner.failures.len() >= MAX_FAILURES {
            let detail = "too many failed logins: wait a minute";
            return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, detail));
        }
        if !same(given, token.expose_secret()) {
            inner.failures.push_back(now);
            return Err(Problem::new(StatusCode::UNAUTHORIZED, "wrong admin token"));
        }
        inner.open.retain(|session| session.until > now);
        if inner.open.len() >= MAX_SESSIONS {
            inner.open.pop_front();
        }
        let session = Session { id: secret(), csrf: secret(), until: now + LIFETIME };
        let cookie = cookie(&session.id, LIFETIME);
        inner.open.push_back(session);
        Ok(cookie)
    }

    /// The CSRF token of the request's session, if it has one.
    pub(super) fn csrf(&self, headers: &HeaderMap) -> Option<String> {
        let id = id(headers)?;
        let now = Instant::now();
        let inner = self.inner();
        let session = inner.open.iter().find(|session| session.until > now && same(&session.id, id))?;
        Some(session.csrf.clone())
    }

    /// Checks that a request may change something.
    pub(super) fn check(&self, headers: &HeaderMap) -> Result<(), Problem> {
        same_site(headers)?;
        let Some(csrf) = self.csrf(headers) else {
            return Err(Problem::new(StatusCode::UNAUTHORIZED, "not logged in"));
        };
        let given = headers.get(CSRF).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if same(given, &csrf) {
            return Ok(());
        }
        let detail = format!("header {CSRF} is missing or wrong: GET /api/session returns the value");
        Err(Problem::new(StatusCode::FORBIDDEN, detail))
    }

    /// Ends the request's session and returns the cookie that removes its cookie.
    pub(super) fn logout(&self, headers: &HeaderMap) -> String {
        if let Some(id) = id(headers) {
            self.inner().open.retain(|session| !same(&session.id, id));
        }
        cookie("", Duration::ZERO)
    }
}

/// Refuses requests that a page of another site started, as the browser reports it.
pub(super) fn same_site(headers: &HeaderMap) -> Result<(), Problem> {
    match headers.get("sec-fetch-site").map(|value| value.as_bytes()) {
        None | Some(b"same-origin" | b"none") => Ok(()),
        Some(_) => Err(Problem::new(StatusCode::FORBIDDEN, "cross-site request refused")),
    }
}

fn cookie(id: &str, lifetime: Duration) -> String {
    format!("{COOKIE}={id}; Path=/; Max-Age={}; HttpOnly; SameSite=Strict", lifetime.as_secs())
}

fn id(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|it| it.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, id)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn session_of(cookie: &str) -> String {
        cookie.split(';').next().unwrap().to_owned()
    }

    #[test]
    fn actions_need_the_session_cookie_and_the_csrf_token() {
        let sessions = Sessions::new(Some("t0ken".to_owned().into()));
        let cookie = sessions.login("t0ken").unwrap();
        assert!(cookie.ends_with("; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict"), "{cookie}");
        let cookie = session_of(&cookie);
        let status =
            |pairs: &[(&'static str, &str)]| sessions.check(&headers(pairs)).map_err(|it| it.status());
        let csrf = sessions.csrf(&headers(&[("cookie", &cookie)])).unwrap();
        assert_eq!(status(&[("cookie", &cookie), (CSRF, &csrf)]), Ok(()));
        assert_eq!(status(&[("cookie", &cookie)]), Err(StatusCode::FORBIDDEN));
        assert_eq!(status(&[("cookie", &cookie), (CSRF, "x")]), Err(StatusCode::FORBIDDEN));
        assert_eq!(status(&[(CSRF, &csrf)]), Err(StatusCode::UNAUTHORIZED));
        assert_eq!(status(&[("cookie", "garenne_session="), (CSRF, "")]), Err(StatusCode::UNAUTHORIZED));
        let foreign = [("cookie", cookie.as_str()), (CSRF, &csrf), ("sec-fetch-site", "cross-site")];
        assert_eq!(status(&foreign), Err(StatusCode::FORBIDDEN));
        sessions.logout(&headers(&[("cookie", &cookie)]));
        assert_eq!(status(&[("cookie", &cookie), (CSRF, &csrf)]), Err(StatusCode::UNAUTHORIZED));
    }

    #[tokio::test(start_paused = true)]
    async fn failed_logins_are_limited_and_sessions_expire() {
        let sessions = Sessions::new(Some("t0ken".to_owned().into()));
        let login = |token: &str| sessions.login(token).map_err(|it| it.status());
        for _ in 0..MAX_FAILURES {
            assert_eq!(login("t0kem").unwrap_err(), StatusCode::UNAUTHORIZED);
        }
        assert_eq!(login("t0ken").unwrap_err(), StatusCode::TOO_MANY_REQUESTS);
        tokio::time::advance(FAILURE_WINDOW).await;
        let cookie = session_of(&login("t0ken").unwrap());
        assert!(sessions.csrf(&headers(&[("cookie", &cookie)])).is_some());
        tokio::time::advance(LIFETIME).await;
        assert!(sessions.csrf(&headers(&[("cookie", &cookie)])).is_none());
        assert_eq!(Sessions::new(None).login("").unwrap_err().status(), StatusCode::FORBIDDEN);
    }
}
