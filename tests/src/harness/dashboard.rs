//! `garenne dashboard` as a process, and a client that sends the requests of its page.

use anyhow::{Context, Result, ensure};
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    client::with_id,
    process::{Ended, Process, Program, Signal},
    readiness,
    test_env::TestEnv,
    wait::{Seen, WAIT_TIMEOUT, eventually},
};

/// The admin token of every test dashboard.
pub const TOKEN: &str = "test-token";

/// A running dashboard. It is killed when the value is dropped.
#[derive(Debug)]
pub struct Dashboard {
    process: Process,
    url: String,
    admin: String,
    http: reqwest::Client,
    cookie: Option<String>,
    csrf: Option<String>,
}

impl Dashboard {
    /// Starts a dashboard for the test environment's virtual host on a free port and waits until it listens.
    pub async fn start(env: &TestEnv) -> Result<Self> {
        Self::start_with(env, |program| program).await
    }

    /// The same, with the workers' database.
    pub async fn with_database(env: &TestEnv, postgres_url: &str) -> Result<Self> {
        Self::start_with(env, |program| program.option("--postgres-url", postgres_url)).await
    }

    /// The same, with further options.
    pub async fn start_with(env: &TestEnv, options: impl FnOnce(Program) -> Program) -> Result<Self> {
        Self::start_as(env, &env.users().console, options).await
    }

    /// The same, as another user of the broker.
    pub async fn start_as(
        env: &TestEnv,
        amqp_url: &str,
        options: impl FnOnce(Program) -> Program,
    ) -> Result<Self> {
        let management = env.vhost().management_url();
        let options = |program| options(program).option("--management-url", management);
        Self::start_without_management(env, amqp_url, options).await
    }

    /// The same, without the management API: it sees less.
    pub async fn start_without_management(
        env: &TestEnv,
        amqp_url: &str,
        options: impl FnOnce(Program) -> Program,
    ) -> Result<Self> {
        let token = env.folder().join("dashboard-token");
        std::fs::write(&token, TOKEN)?;
        let program = Program::new("garenne")
            .arg("dashboard")
            .option("--listen", "127.0.0.1:0")
            .option("--admin", "127.0.0.1:0")
            .option("--amqp-url", amqp_url)
            .option("--admin-token-file", &token);
        let process = options(program).start().await?;
        let address = process.stderr().until("the dashboard's address", |lines| {
            let line = lines.iter().find(|line| line.contains("dashboard is listening"))?;
            Some(line.rsplit("address=").next()?.trim().to_owned())
        });
        let url = address.await?;
        let admin = process.stderr().until("the admin port's address", |lines| {
            let line = lines.iter().find(|line| line.contains("admin port is open"))?;
            Some(line.rsplit("address=").next()?.trim().to_owned())
        });
        let admin = format!("http://{}", admin.await?);
        let http = reqwest::Client::builder().pool_max_idle_per_host(0).build()?;
        Ok(Self { process, url, admin, http, cookie: None, csrf: None })
    }

    /// The URL of its page.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Waits until `/readyz` answers that it is ready.
    pub async fn until_ready(&mut self) -> Result<()> {
        readiness::until_ready(&mut self.process, (&self.http, &self.admin), "the dashboard", true).await
    }

    /// Waits until `/readyz` answers that it is not ready, with a reason that contains `reason`.
    pub async fn until_not_ready_for(&self, reason: &str) -> Result<()> {
        readiness::until_not_ready_for((&self.http, &self.admin), "the dashboard", reason).await
    }

    /// `GET` with any status.
    pub async fn get(&self, path: &str) -> Result<Response> {
        self.get_as(path, "*/*").await
    }

    /// `GET` with a header `accept`, with any status.
    pub async fn get_as(&self, path: &str, accept: &str) -> Result<Response> {
        let request = self.http.request(Method::GET, format!("{}{path}", self.url));
        let mut request = request.header("accept", accept);
        if let Some(cookie) = &self.cookie {
            request = request.header("cookie", cookie);
        }
        Ok(request.send().await?)
    }

    /// `GET` of JSON; any status but success is an error.
    pub async fn json(&self, path: &str) -> Result<Value> {
        Ok(self.get(path).await?.error_for_status()?.json().await?)
    }

    /// `POST` as the page does, after a login with the cookie and the CSRF token. Returns status and answer.
    pub async fn post(&self, path: &str, body: Value) -> Result<(StatusCode, Value)> {
        self.post_with(path, body, self.csrf.as_deref()).await
    }

    /// The same, with another CSRF token or none.
    pub async fn post_with(
        &self,
        path: &str,
        body: Value,
        csrf: Option<&str>,
    ) -> Result<(StatusCode, Value)> {
        let mut request = self.http.post(format!("{}{path}", self.url)).json(&body);
        if let Some(cookie) = &self.cookie {
            request = request.header("cookie", cookie);
        }
        if let Some(csrf) = csrf {
            request = request.header("x-garenne-csrf", csrf);
        }
        let answer = request.send().await?;
        let status = answer.status();
        Ok((status, answer.json().await.unwrap_or_default()))
    }

    /// Waits until the job of an answer has ended, and returns it.
    pub async fn until_job_ended(&self, job: &Value) -> Result<Value> {
        let id = job["id"].as_str().with_context(|| format!("no job: {job}"))?;
        eventually("the job has ended", async || {
            let job = self.json(&format!("/api/jobs/{id}")).await?;
            Ok(if job["ended_at"].is_null() { Seen::Other(job.to_string()) } else { Seen::Wanted(job) })
        })
        .await
    }

    /// `GET` of what only people who are logged in may read, with the CSRF token.
    pub async fn get_privately(&self, path: &str) -> Result<Response> {
        let request = self.http.request(Method::GET, format!("{}{path}", self.url));
        let request = request.header("cookie", self.cookie.as_deref().unwrap_or_default());
        Ok(request.header("x-garenne-csrf", self.csrf.as_deref().unwrap_or_default()).send().await?)
    }

    /// The most memory that the process had, in bytes.
    pub fn peak_memory(&self) -> Result<u64> {
        self.process.peak_memory()
    }

    /// Logs in.
    pub async fn login(&mut self, token: &str) -> Result<()> {
        self.login_with(&json!({ "token": token })).await
    }

    /// Logs a person in.
    pub async fn login_as(&mut self, name: &str, password: &str) -> Result<()> {
        self.login_with(&json!({ "name": name, "password": password })).await
    }

    async fn login_with(&mut self, body: &Value) -> Result<()> {
        let answer = self.http.post(format!("{}/api/login", self.url)).json(body).send().await?;
        ensure!(answer.status() == StatusCode::NO_CONTENT, "{}: {}", answer.status(), answer.text().await?);
        let cookie = answer.headers().get("set-cookie").context("no cookie")?.to_str()?.to_owned();
        ensure!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
        self.cookie = cookie.split(';').next().map(str::to_owned);
        self.csrf = self.json("/api/session").await?["csrf"].as_str().map(str::to_owned);
        ensure!(self.csrf.is_some(), "no session");
        Ok(())
    }

    /// Reads the live updates until `wanted` is true for one.
    ///
    /// # Errors
    /// If there is none in time, with the last update.
    pub async fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let mut last = Value::Null;
        let watching = async {
            loop {
                let mut events = self.get("/api/events").await?.error_for_status()?;
                let mut text = String::new();
                while let Some(chunk) = events.chunk().await? {
                    text += std::str::from_utf8(&chunk).context("a chunk ends within a character")?;
                    while let Some((event, rest)) = text.split_once("\n\n") {
                        let data = event.lines().find_map(|line| line.strip_prefix("data: "));
                        if let Some(data) = data {
                            last = serde_json::from_str(data)?;
                            if wanted(&last) {
                                return anyhow::Ok(last.clone());
                            }
                        }
                        text = rest.to_owned();
                    }
                }
            }
        };
        match timeout(WAIT_TIMEOUT, watching).await {
            Ok(found) => found,
            Err(_) => anyhow::bail!("not within {WAIT_TIMEOUT:?}: {what}; last seen: {last:#}"),
        }
    }

    /// Waits until it receives heartbeats: the broker returns a heartbeat that reaches no queue.
    pub async fn until_it_listens(&self, env: &TestEnv) -> Result<()> {
        let key = "beat.gateway.first";
        eventually("the dashboard receives heartbeats", async || {
            let sent = env.client().publish("garenne.events", key, with_id(key), b"{}").await;
            Ok(Seen::when(sent.is_ok(), format!("{:?}", sent.err())))
        })
        .await
    }

    /// Sends SIGTERM and waits for the end.
    pub async fn stop(self) -> Result<Ended> {
        self.process.signal(Signal::TERM)?;
        self.process.ended().await
    }
}
