//! Sessions. A login sets a cookie that scripts cannot read. Every command also sends the session's CSRF token, which
//! other sites cannot read.

use std::{collections::VecDeque, sync::Mutex, time::Duration};

use axum::http::{HeaderMap, header};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use garenne_common::lock::lock;
use subtle::ConstantTimeEq;
use tokio::time::Instant;

use super::user::User;

const COOKIE: &str = "garenne_session";
/// Lifetime of a session: longer than a working day.
const LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// Limit on sessions. A new one ends the oldest.
const MAX_SESSIONS: usize = 1_000;
/// Limit on sessions of one person. A new one ends the person's oldest, so that a person cannot end the sessions of others.
const MAX_OWN_SESSIONS: usize = 8;

/// All sessions of this process.
pub(super) struct Sessions {
    open: Mutex<VecDeque<Session>>,
    /// Whether browsers may send the cookie over TLS only.
    secure: bool,
}

#[derive(Clone)]
pub(super) struct Session {
    pub(super) user: User,
    pub(super) csrf: String,
    id: String,
    until: Instant,
}

fn secret() -> String {
    BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>())
}

/// Compares secrets in constant time.
pub(super) fn same(a: &str, b: &str) -> bool {
    a.as_bytes().ct_eq(b.as_bytes()).into()
}

impl Sessions {
    pub(super) fn new(secure: bool) -> Self {
        Self { open: Mutex::default(), secure }
    }

    /// Starts a session. Returns it and the cookie to set.
    pub(super) fn start(&self, user: User) -> (Session, String) {
        let now = Instant::now();
        let mut open = lock(&self.open);
        open.retain(|session| session.until > now);
        let own = open.iter().filter(|session| session.user.name == user.name).count();
        if own >= MAX_OWN_SESSIONS {
            let oldest = open.iter().position(|session| session.user.name == user.name);
            oldest.map(|oldest| open.remove(oldest));
        } else if open.len() >= MAX_SESSIONS {
            open.pop_front();
        }
        let session = Session { user, id: secret(), csrf: secret(), until: now + LIFETIME };
        let cookie = self.cookie(&session.id, LIFETIME);
        open.push_back(session.clone());
        (session, cookie)
    }

    /// The session of the request's cookie.
    pub(super) fn of(&self, headers: &HeaderMap) -> Option<Session> {
        let id = id(headers)?;
        let now = Instant::now();
        lock(&self.open).iter().find(|session| session.until > now && same(&session.id, id)).cloned()
    }

    /// Ends the request's session and returns the cookie that removes its cookie.
    pub(super) fn end(&self, headers: &HeaderMap) -> String {
        if let Some(id) = id(headers) {
            lock(&self.open).retain(|session| !same(&session.id, id));
        }
        self.cookie("", Duration::ZERO)
    }

    fn cookie(&self, id: &str, lifetime: Duration) -> String {
        let secure = if self.secure { "; Secure" } else { "" };
        format!("{COOKIE}={id}; Path=/; Max-Age={}; HttpOnly; SameSite=Strict{secure}", lifetime.as_secs())
    }
}

fn id(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|it| it.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, id)| id)
}

#[cfg(test)]
mod tests {
    use super::{super::user::Login, *};
    use crate::accounts::Role;

    fn start(sessions: &Sessions, name: &str) -> HeaderMap {
        let user =
            User { name: name.to_owned(), role: Role::Operator, may_look: false, login: Login::Token(0) };
        let (_, cookie) = sessions.start(user);
        assert!(cookie.ends_with("; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict"), "{cookie}");
        let cookie = cookie.split(';').next().unwrap();
        HeaderMap::from_iter([(header::COOKIE, cookie.parse().unwrap())])
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_end_with_time_and_with_a_logout() {
        let sessions = Sessions::new(false);
        let (first, second) = (start(&sessions, "anna"), start(&sessions, "anna"));
        assert_eq!(sessions.of(&first).unwrap().user.name, "anna");
        let removal = sessions.end(&first);
        assert!(removal.starts_with("garenne_session=; Path=/; Max-Age=0;"), "{removal}");
        assert!(sessions.of(&first).is_none() && sessions.of(&second).is_some());
        tokio::time::advance(LIFETIME).await;
        assert!(sessions.of(&second).is_none());
        let empty = HeaderMap::from_iter([(header::COOKIE, "garenne_session=".parse().unwrap())]);
        assert!(sessions.of(&empty).is_none());
    }

    #[test]
    fn a_person_with_many_logins_ends_only_their_own_sessions() {
        let sessions = Sessions::new(false);
        let (other, first) = (start(&sessions, "ben"), start(&sessions, "anna"));
        for _ in 0..MAX_SESSIONS * 2 {
            start(&sessions, "anna");
        }
        assert!(sessions.of(&other).is_some() && sessions.of(&first).is_none());
    }

    #[test]
    fn a_cookie_of_a_server_with_tls_is_never_sent_without_it() {
        let user =
            User { name: "anna".to_owned(), role: Role::Viewer, may_look: false, login: Login::Token(0) };
        assert!(Sessions::new(true).start(user).1.ends_with("; SameSite=Strict; Secure"));
    }
}
