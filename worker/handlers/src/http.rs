//! Handlers that are HTTP services.

use std::{
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use bytes::Bytes;
use garenne::{TaskContext, TaskError, layer::Task};
use garenne_common::{
    client_tls, clock,
    config::Certificates,
    resilience::{Breaker, BreakerConfig, BreakerError},
    text::with_causes,
    webhook::parse_retry_after,
};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    HeaderMap, Request, StatusCode, Uri,
    header::{HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT},
};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use tokio::{
    net::TcpStream,
    sync::{Notify, watch},
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    answer::{Answer, DEFERRAL, output_of},
    handler::{Handler, Ready},
    metrics::Counters,
    settings::HandlerSettings,
};

/// Time to connect, without the TLS handshake, and time limit of a health check.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause between two health checks of a service that is not ready.
const HEALTH_INTERVAL: Duration = Duration::from_secs(2);
/// For how long a kind pauses after 429 without `Retry-After`.
const PAUSE: Duration = Duration::from_secs(1);
/// Why a kind pauses after 429.
const TOO_MANY: &str = "it answered 429 Too Many Requests";
/// How much of a response an error quotes, in characters.
const QUOTED: usize = 200;

type HttpClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// A handler and its connections.
pub(crate) struct Http {
    name: Arc<str>,
    settings: HandlerSettings,
    max_body: usize,
    client: HttpClient,
    breaker: Breaker,
    /// Headers that are the same for all tasks.
    headers: HeaderMap,
    ready: Ready,
    /// Notified when the service may not be able to run tasks.
    doubted: Notify,
    /// Until when the kind is paused.
    paused: watch::Sender<Option<Instant>>,
}

/// Why a request has no answer that decides about the task.
enum Failure {
    /// The service may not be able to run tasks.
    Doubtful(String),
    /// The attempt failed.
    Failed(String, Option<Duration>),
    /// There are too many requests.
    TooMany(String, Duration),
}

impl Http {
    pub(crate) fn new(name: &str, settings: HandlerSettings, max_body: usize) -> Self {
        let tls = client_tls::client_config(&Certificates::default()).expect("no file can be invalid");
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        tcp.set_nodelay(true);
        let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .build(https.wrap_connector(tcp));
        let breaker = Breaker::new(BreakerConfig {
            failures: 10,
            successes: 1,
            error_free: Duration::from_secs(10),
            open_for: Duration::from_secs(2),
        });
        let mut headers = HeaderMap::new();
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("garenne/", env!("CARGO_PKG_VERSION"))));
        for (name, value) in &settings.headers {
            let header = (HeaderName::try_from(name), HeaderValue::try_from(value));
            if let (Ok(name), Ok(value)) = header {
                headers.insert(name, value);
            }
        }
        let name = name.into();
        Self {
            ready: Ready::new(&name),
            name,
            settings,
            max_body,
            client,
            breaker,
            headers,
            doubted: Notify::new(),
            paused: watch::Sender::new(None),
        }
    }

    /// Checks whether the service can run tasks.
    async fn health(&self) -> Result<(), String> {
        let check = async {
            let Some(url) = &self.settings.health else {
                let url: Uri = self.url();
                let default = if url.scheme_str() == Some("https") { 443 } else { 80 };
                let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
                let connected = TcpStream::connect((host, url.port_u16().unwrap_or(default))).await;
                return connected.map(drop).map_err(|error| error.to_string());
            };
            let request =
                Request::get(url.as_str()).body(Full::default()).map_err(|error| error.to_string())?;
            let response = self.client.request(request).await.map_err(|error| with_causes(&error))?;
            match response.status() {
                status if status.is_success() => Ok(()),
                status => Err(format!("{url} answers {status}")),
            }
        };
        let checked = timeout(CONNECT_TIMEOUT, check).await;
        checked.unwrap_or_else(|_| Err(format!("no answer within {CONNECT_TIMEOUT:?}")))
    }

    fn url(&self) -> Uri {
        self.settings.url.as_deref().unwrap_or_default().parse().unwrap_or_default()
    }

    fn request(
        &self,
        context: &TaskContext,
        content_type: &'static str,
        body: &Bytes,
    ) -> Result<Request<Full<Bytes>>, TaskError> {
        let left =
            context.deadline().map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()));
        let trace = context.trace();
        let mut headers = self.headers.clone();
        let id = context.id().as_str();
        let mut add = |name: &'static str, value: &str| -> Result<(), TaskError> {
            headers.insert(HeaderName::from_static(name), header(name, value)?);
            Ok(())
        };
        add("content-type", content_type)?;
        add("garenne-task-id", id)?;
        add("garenne-kind", context.kind().as_str())?;
        add("garenne-attempt", &context.attempt().to_string())?;
        add("garenne-deadline-ms", &left.as_millis().to_string())?;
        let others = [
            ("garenne-lane", context.lane()),
            ("garenne-group", context.group()),
            ("garenne-key", context.key()),
            ("traceparent", trace.as_ref().map(|trace| trace.parent())),
            ("tracestate", trace.as_ref().and_then(|trace| trace.state())),
        ];
        others
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .try_for_each(|(name, value)| add(name, value))?;
        if let Some(secret) = &self.settings.secret {
            let now = clock::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            // The signature separates its parts by full stops.
            let id = format!("{}_{}", id.replace('.', "_"), context.attempt());
            add("webhook-id", &id)?;
            add("webhook-timestamp", &now.to_string())?;
            add("webhook-signature", &secret.sign(&id, now, body))?;
        }
        let mut request = Request::new(Full::new(body.clone()));
        *request.method_mut() = hyper::Method::POST;
        *request.uri_mut() = self.url();
        *request.headers_mut() = headers;
        Ok(request)
    }

    /// Sends the request. An answer decides about the task.
    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Answer, Failure> {
        let response = self.client.request(request).await.map_err(|error| match error.is_connect() {
            true => Failure::Doubtful(with_causes(&error)),
            false => Failure::Failed(with_causes(&error), None),
        })?;
        let (parts, body) = response.into_parts();
        let wait = parts.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let wait = wait.and_then(|text| parse_retry_after(text, clock::now().into()));
        let body = Limited::new(body, self.max_body).collect().await;
        let status = parts.status;
        if status.is_success() {
            return match body {
                Ok(body) => Ok(output_of(&body.to_bytes())),
                Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                    let max = self.max_body;
                    Ok(Err(TaskError::reject(format!(
                        "the output has more than {max} bytes, max_payload allows no more"
                    ))))
                }
                Err(error) => Err(Failure::Failed(format!("the response ended early: {error}"), None)),
            };
        }
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        let text = String::from_utf8_lossy(&body);
        let text: String =
            text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(QUOTED).collect();
        let error = if text.is_empty() { status.to_string() } else { format!("{status}: {text}") };
        match status {
            StatusCode::BAD_REQUEST
            | StatusCode::CONFLICT
            | StatusCode::GONE
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNSUPPORTED_MEDIA_TYPE
            | StatusCode::UNPROCESSABLE_ENTITY => Ok(Err(TaskError::reject(error))),
            StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::NOT_FOUND
            | StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::MISDIRECTED_REQUEST => Err(Failure::Doubtful(error)),
            StatusCode::TOO_MANY_REQUESTS => Err(Failure::TooMany(error, wait.unwrap_or(PAUSE))),
            _ => Err(Failure::Failed(error, wait)),
        }
    }
}

/// The value of a header, in UTF-8.
fn header(name: &str, value: &str) -> Result<HeaderValue, TaskError> {
    let field = name.strip_prefix("garenne-").unwrap_or(name);
    HeaderValue::from_bytes(value.as_bytes()).map_err(|_| {
        TaskError::reject(format!(
            "the task's {field} cannot be the header {name}: it has a control character"
        ))
    })
}

impl Handler for Http {
    fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Checks the health of the service before the first task and whenever it is in doubt, until `stopping` is cancelled.
    async fn serve(self: Arc<Self>, _: Counters, stopping: CancellationToken) {
        let checking = async {
            let mut paused = self.paused.subscribe();
            loop {
                let mut has_logged = false;
                while let Err(problem) = self.health().await {
                    self.ready.set(Err(&problem));
                    if !std::mem::replace(&mut has_logged, true) {
                        tracing::error!(handler = %self.name, "the handler is not ready: {problem}");
                    }
                    sleep(HEALTH_INTERVAL).await;
                }
                let pause = *paused.borrow_and_update();
                if let Some(until) = pause {
                    self.ready.set(Err(TOO_MANY));
                    sleep_until(until).await;
                }
                self.ready.set(Ok(()));
                tokio::select! {
                    () = self.doubted.notified() => {}
                    _ = paused.changed() => {}
                }
            }
        };
        stopping.run_until_cancelled(checking).await;
    }

    async fn run(&self, task: Task) -> Answer {
        let Task { context, body, content_type, .. } = task;
        let request = self.request(&context, content_type.as_str(), &body)?;
        let answered = tokio::select! {
            biased;
            answered = self.breaker.run(|| self.exchange(request)) => answered,
            () = context.token().cancelled() => return Err(TaskError::interrupted()),
        };
        match answered {
            Ok(answer) => answer,
            // The breaker is open: no request was made.
            Err(BreakerError::Open { left }) => Err(TaskError::snooze(left.max(DEFERRAL))),
            Err(BreakerError::Failed(Failure::Failed(error, None))) => Err(TaskError::retry(error)),
            Err(BreakerError::Failed(Failure::Failed(error, Some(wait)))) => {
                Err(TaskError::retry_after(error, wait))
            }
            Err(BreakerError::Failed(Failure::TooMany(error, wait))) => {
                self.ready.set(Err(TOO_MANY));
                self.paused.send_replace(Some(Instant::now() + wait));
                Err(TaskError::retry_after(error, wait))
            }
            Err(BreakerError::Failed(Failure::Doubtful(error))) => match self.health().await {
                Ok(()) => Err(TaskError::retry(error)),
                Err(problem) => {
                    self.ready.set(Err(&problem));
                    self.doubted.notify_one();
                    Err(TaskError::snooze(DEFERRAL))
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_no_header_can_have_is_refused_by_its_name() {
        let key = |value: &str| header("garenne-key", value).map_err(|error| error.to_string());
        assert_eq!(key("gr\u{fc}n").unwrap().as_bytes(), "gr\u{fc}n".as_bytes());
        for value in ["a\0b", "a\r\nb", "\u{7f}"] {
            assert_eq!(
                key(value).unwrap_err(),
                "the task's key cannot be the header garenne-key: it has a control character"
            );
        }
    }
}
