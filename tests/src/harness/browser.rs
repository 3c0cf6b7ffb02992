//! A real browser, steered over its DevTools pipe: Debian's Chromium, where it is installed.

use std::{path::PathBuf, process::Stdio};

use anyhow::{Context, Result, bail, ensure};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use super::wait::{Seen, WAIT_TIMEOUT, eventually};

/// The programs that it may be.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// A browser with one page. Dropped, it is killed.
#[derive(Debug)]
pub struct Browser {
    _child: Child,
    _profile: TempDir,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: Option<String>,
    asked: u64,
    /// What the page's scripts failed with.
    pub complaints: Vec<String>,
}

/// Where a browser is, if one is installed.
#[must_use]
pub fn installed() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<_> = std::env::split_paths(&path).collect();
    NAMES.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name))).find(|it| it.is_file())
}

impl Browser {
    /// Starts it with an empty page.
    ///
    /// # Errors
    /// When it does not start or does not speak.
    pub async fn start(program: &PathBuf) -> Result<Self> {
        let profile = tempfile::tempdir()?;
        // The pipe's ends are descriptors 3 and 4, which a shell can make of 0 and 1.
        let script = r#"exec "$0" --headless=new --no-sandbox --disable-gpu --no-first-run \
                        --user-data-dir="$1" --remote-debugging-pipe about:blank 3<&0 4>&1"#;
        let mut child = Command::new("sh")
            .args(["-c", script])
            .arg(program)
            .arg(profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let to = child.stdin.take().context("stdin")?;
        let from = BufReader::new(child.stdout.take().context("stdout")?);
        let mut browser = Self {
            _child: child,
            _profile: profile,
            to,
            from,
            session: None,
            asked: 0,
            complaints: Vec::new(),
        };
        let page = browser.ask("Target.createTarget", json!({"url": "about:blank"})).await?;
        let attach = json!({"targetId": page["targetId"], "flatten": true});
        let session = browser.ask("Target.attachToTarget", attach).await?;
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        browser.ask("Page.enable", json!({})).await?;
        browser.ask("Runtime.enable", json!({})).await?;
        browser.ask("Log.enable", json!({})).await?;
        Ok(browser)
    }

    /// One command and its answer.
    async fn ask(&mut self, method: &str, parameters: Value) -> Result<Value> {
        self.asked += 1;
        let mut message = json!({"id": self.asked, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.to.write_all(format!("{message}\0").as_bytes()).await?;
        let answer = async {
            loop {
                let mut bytes = Vec::new();
                ensure!(self.from.read_until(0, &mut bytes).await? > 0, "the browser ended");
                bytes.pop();
                let said: Value = serde_json::from_slice(&bytes)?;
                if said["id"] == self.asked {
                    return anyhow::Ok(said);
                }
                let entry = &said["params"]["entry"];
                if said["method"] == "Runtime.exceptionThrown" || entry["level"] == "error" {
                    self.complaints.push(said["params"].to_string());
                }
            }
        };
        let said =
            timeout(WAIT_TIMEOUT, answer).await.with_context(|| format!("no answer to {method}"))??;
        if !said["error"].is_null() {
            bail!("{method}: {}", said["error"]);
        }
        Ok(said["result"].clone())
    }

    /// Opens a page, in the dark where that is wanted.
    ///
    /// # Errors
    /// When the browser refuses.
    pub async fn open(&mut self, url: &str, dark: bool) -> Result<()> {
        let scheme = if dark { "dark" } else { "light" };
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.ask("Emulation.setEmulatedMedia", features).await?;
        self.ask("Page.navigate", json!({ "url": url })).await?;
        Ok(())
    }

    /// What an expression of the page's is.
    ///
    /// # Errors
    /// When it throws.
    pub async fn value(&mut self, expression: &str) -> Result<Value> {
        let parameters = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let answer = self.ask("Runtime.evaluate", parameters).await?;
        ensure!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        Ok(answer["result"]["value"].clone())
    }

    /// Waits until an expression of the page's is true.
    ///
    /// # Errors
    /// When it never is.
    pub async fn until(&mut self, expression: &str) -> Result<()> {
        eventually(expression, async || {
            let value = self.value(expression).await?;
            Ok(Seen::when(value == true, value))
        })
        .await
    }

    /// Keeps a picture of the page under this name, where `GARENNE_TEST_PICTURES` names a folder for them.
    ///
    /// # Errors
    /// When it cannot be taken or written.
    pub async fn picture(&mut self, name: &str) -> Result<()> {
        let Some(folder) = std::env::var_os("GARENNE_TEST_PICTURES") else { return Ok(()) };
        let size = json!({"width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": false});
        self.ask("Emulation.setDeviceMetricsOverride", size).await?;
        let taken = self.ask("Page.captureScreenshot", json!({"format": "png"})).await?;
        let bytes = BASE64_STANDARD.decode(taken["data"].as_str().context("a picture")?)?;
        Ok(tokio::fs::write(PathBuf::from(folder).join(format!("{name}.png")), bytes).await?)
    }

    /// Types into whatever has the focus.
    ///
    /// # Errors
    /// When the browser refuses.
    pub async fn write(&mut self, text: &str) -> Result<()> {
        self.ask("Input.insertText", json!({ "text": text })).await.map(drop)
    }

    /// Presses a key, such as `Enter` or `Tab`.
    ///
    /// # Errors
    /// When the browser refuses.
    pub async fn press(&mut self, key: &str) -> Result<()> {
        let code = match key {
            "Enter" => 13,
            "Tab" => 9,
            other => u32::from(other.to_uppercase().bytes().next().unwrap_or(0)),
        };
        let text = match key {
            "Enter" => "\r",
            "Tab" => "",
            other => other,
        };
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" { text } else { "" };
            let event = json!({"type": kind, "key": key, "windowsVirtualKeyCode": code, "text": text});
            self.ask("Input.dispatchKeyEvent", event).await?;
        }
        Ok(())
    }
}
