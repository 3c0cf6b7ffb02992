//! Who may change something: a session begins with the admin token and lives in a cookie that no script
//! can read; every change also shows the session's second secret, which no other site can know.

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

use super::answer::Refusal;

const COOKIE: &str = "garenne_session";
/// The header of a change.
pub(super) const CSRF: &str = "x-garenne-csrf";
/// A shift, and then some.
const LIFE: Duration = Duration::from_secs(12 * 3600);
/// Browsers logged in at once; the oldest goes.
const MOST: usize = 64;
/// Wrong tokens within a minute, of everybody; more are not looked at.
const MOST_FAILURES: usize = 10;
const FAILURES_WITHIN: Duration = Duration::from_secs(60);

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

    /// Whether anybody can log in at all.
    pub(super) fn possible(&self) -> bool {
        self.token.is_some()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a session; answers the cookie to set.
    pub(super) fn login(&self, given: &str) -> Result<String, Refusal> {
        let Some(token) = &self.token else {
            let detail =
                "actions are off: set --admin-token-file or GARENNE_ADMIN_TOKEN_FILE to a file with a token";
            return Err(Refusal::new(StatusCode::FORBIDDEN, detail));
        };
        let now = Instant::now();
        let mut inner = self.inner();
        inner.failures.retain(|at| now - *at < FAILURES_WITHIN);
        if inner.failures.len() >= MOST_FAILURES {
            let detail = "too many wrong tokens: wait a minute";
            return Err(Refusal::new(StatusCode::TOO_MANY_REQUESTS, detail));
        }
        if !same(given, token.expose_secret()) {
            inner.failures.push_back(now);
            return Err(Refusal::new(StatusCode::UNAUTHORIZED, "this is not the admin token"));
        }
        inner.open.retain(|session| session.until > now);
        if inner.open.len() >= MOST {
            inner.open.pop_front();
        }
        let session = Session { id: secret(), csrf: secret(), until: now + LIFE };
        let cookie = cookie(&session.id, LIFE);
        inner.open.push_back(session);
        Ok(cookie)
    }

    /// The second secret of a request's session, where it has one.
    pub(super) fn csrf(&self, headers: &HeaderMap) -> Option<String> {
        let id = id(headers)?;
        let now = Instant::now();
        let inner = self.inner();
        let session = inner.open.iter().find(|session| session.until > now && same(&session.id, id))?;
        Some(session.csrf.clone())
    }

    /// Lets a change pass, or says why not.
    pub(super) fn check(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        same_site(headers)?;
        let Some(csrf) = self.csrf(headers) else {
            return Err(Refusal::new(StatusCode::UNAUTHORIZED, "log in first"));
        };
        let given = headers.get(CSRF).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if same(given, &csrf) {
            return Ok(());
        }
        let detail = format!("the header {CSRF} is missing or wrong: GET /api/session has it");
        Err(Refusal::new(StatusCode::FORBIDDEN, detail))
    }

    /// Ends a request's session; answers the cookie that removes it.
    pub(super) fn logout(&self, headers: &HeaderMap) -> String {
        if let Some(id) = id(headers) {
            self.inner().open.retain(|session| !same(&session.id, id));
        }
        cookie("", Duration::ZERO)
    }
}

/// Browsers say where a request comes from; one that another site started changes nothing here.
pub(super) fn same_site(headers: &HeaderMap) -> Result<(), Refusal> {
    match headers.get("sec-fetch-site").map(|value| value.as_bytes()) {
        None | Some(b"same-origin" | b"none") => Ok(()),
        Some(_) => Err(Refusal::new(StatusCode::FORBIDDEN, "another site sent this request")),
    }
}

fn cookie(id: &str, life: Duration) -> String {
    format!("{COOKIE}={id}; Path=/; Max-Age={}; HttpOnly; SameSite=Strict", life.as_secs())
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
    fn a_change_needs_the_session_and_its_second_secret() {
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
    async fn guessing_and_time_end_it() {
        let sessions = Sessions::new(Some("t0ken".to_owned().into()));
        let login = |token: &str| sessions.login(token).map_err(|it| it.status());
        for _ in 0..MOST_FAILURES {
            assert_eq!(login("t0kem").unwrap_err(), StatusCode::UNAUTHORIZED);
        }
        assert_eq!(login("t0ken").unwrap_err(), StatusCode::TOO_MANY_REQUESTS);
        tokio::time::advance(FAILURES_WITHIN).await;
        let cookie = session_of(&login("t0ken").unwrap());
        assert!(sessions.csrf(&headers(&[("cookie", &cookie)])).is_some());
        tokio::time::advance(LIFE).await;
        assert!(sessions.csrf(&headers(&[("cookie", &cookie)])).is_none());
        assert_eq!(Sessions::new(None).login("").unwrap_err().status(), StatusCode::FORBIDDEN);
    }
}
