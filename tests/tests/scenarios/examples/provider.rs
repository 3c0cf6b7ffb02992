//! A mail provider.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::Result;
use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use serde_json::Value;
use tokio::{net::TcpListener, sync::Semaphore};

/// A mail provider that answers no request before the gate is open.
pub(super) struct Provider {
    pub(super) gate: Semaphore,
    /// The keys of requests that came before the gate was open, by the domain of their mail.
    pub(super) early: Mutex<BTreeMap<String, Vec<String>>>,
    /// The answers to each idempotency key.
    pub(super) answers: Mutex<BTreeMap<String, Vec<u16>>>,
    /// Keys with an answer that says that the mail is sent.
    pub(super) sent: AtomicUsize,
}

impl Provider {
    pub(super) async fn start() -> Result<(Arc<Self>, String)> {
        let provider = Arc::new(Self {
            gate: Semaphore::new(0),
            early: Mutex::default(),
            answers: Mutex::default(),
            sent: AtomicUsize::new(0),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/mail", listener.local_addr()?);
        let routes = Router::new().route("/mail", post(Self::accept)).with_state(Arc::clone(&provider));
        tokio::spawn(async { axum::serve(listener, routes).await });
        Ok((provider, url))
    }

    async fn accept(
        State(this): State<Arc<Self>>,
        headers: HeaderMap,
        Json(mail): Json<Value>,
    ) -> (StatusCode, [(&'static str, &'static str); 1], &'static str) {
        let key = headers["idempotency-key"].to_str().unwrap_or_default().to_owned();
        let (user, domain) = mail["to"].as_str().unwrap_or_default().split_once('@').unwrap_or_default();
        if this.gate.available_permits() == 0 {
            lock(&this.early).entry(domain.to_owned()).or_default().push(key.clone());
        }
        drop(this.gate.acquire().await);
        let mut answers = lock(&this.answers);
        let answers = answers.entry(key).or_default();
        let (status, text) = match user {
            "busy" if answers.is_empty() => (StatusCode::TOO_MANY_REQUESTS, ""),
            "broken" if answers.is_empty() => (StatusCode::SERVICE_UNAVAILABLE, ""),
            "nobody" => (StatusCode::UNPROCESSABLE_ENTITY, "no such user"),
            _ => (StatusCode::ACCEPTED, ""),
        };
        if status == StatusCode::ACCEPTED && !answers.contains(&202) {
            this.sent.fetch_add(1, Ordering::Relaxed);
        }
        answers.push(status.as_u16());
        (status, [("retry-after", "1")], text)
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
