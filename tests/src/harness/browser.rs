//! A real browser (Chromium, if it is installed), controlled through its DevTools pipe.

use std::{ffi::OsString, path::PathBuf, process::Stdio};

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

/// Names of the browser's program.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// A browser with one page. It is killed when the value is dropped.
#[derive(Debug)]
pub struct Browser {
    _child: Child,
    _profile: TempDir,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: Option<String>,
    last_id: u64,
    /// Whether a request failed since the last [`open`](Self::open) because the network interfaces of this machine changed,
    /// as they do whenever another test starts or stops a container.
    network_changed: bool,
    /// Errors that the page's scripts and the browser reported.
    pub errors: Vec<String>,
}

/// The path of the browser, if one is installed.
#[must_use]
pub fn installed() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<_> = std::env::split_paths(&path).collect();
    NAMES.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name))).find(|it| it.is_file())
}

impl Browser {
    /// Starts the browser with an empty page.
    pub async fn start(program: &PathBuf) -> Result<Self> {
        let profile = tempfile::tempdir()?;
        // The browser expects the pipe at descriptors 3 and 4, so a shell redirects 0 and 1 there.
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
            last_id: 0,
            network_changed: false,
            errors: Vec::new(),
        };
        let page = browser.command("Target.createTarget", json!({"url": "about:blank"})).await?;
        let attach = json!({"targetId": page["targetId"], "flatten": true});
        let session = browser.command("Target.attachToTarget", attach).await?;
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        browser.command("Page.enable", json!({})).await?;
        browser.command("Runtime.enable", json!({})).await?;
        browser.command("Log.enable", json!({})).await?;
        Ok(browser)
    }

    /// Sends a command and waits for its answer.
    async fn command(&mut self, method: &str, parameters: Value) -> Result<Value> {
        self.last_id += 1;
        let mut message = json!({"id": self.last_id, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.to.write_all(format!("{message}\0").as_bytes()).await?;
        let answer = async {
            loop {
                let mut bytes = Vec::new();
                ensure!(self.from.read_until(0, &mut bytes).await? > 0, "the browser ended");
                bytes.pop();
                let message: Value = serde_json::from_slice(&bytes)?;
                if message["id"] == self.last_id {
                    return anyhow::Ok(message);
                }
                let entry = &message["params"]["entry"];
                if entry["text"].as_str().is_some_and(|text| text.contains("ERR_NETWORK_CHANGED")) {
                    self.network_changed = true;
                } else if message["method"] == "Runtime.exceptionThrown" || entry["level"] == "error" {
                    self.errors.push(message["params"].to_string());
                }
            }
        };
        let answer =
            timeout(WAIT_TIMEOUT, answer).await.with_context(|| format!("no answer to {method}"))??;
        if !answer["error"].is_null() {
            bail!("{method}: {}", answer["error"]);
        }
        Ok(answer["result"].clone())
    }

    /// Opens a page, in a dark or light colour scheme, and waits until its scripts have been loaded.
    pub async fn open(&mut self, url: &str, dark: bool) -> Result<()> {
        let scheme = if dark { "dark" } else { "light" };
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.command("Emulation.setEmulatedMedia", features).await?;
        loop {
            self.network_changed = false;
            let opened = self.command("Page.navigate", json!({ "url": url })).await?;
            if opened["errorText"] == "net::ERR_NETWORK_CHANGED" {
                continue;
            }
            ensure!(opened["errorText"].is_null(), "{url}: {opened}");
            self.until("document.readyState === 'complete'").await?;
            if !self.network_changed {
                return Ok(());
            }
        }
    }

    /// Lets requests whose URL matches one of these patterns fail, as they do while the network is down.
    pub async fn block(&mut self, patterns: &[&str]) -> Result<()> {
        self.command("Network.enable", json!({})).await?;
        self.command("Network.setBlockedURLs", json!({ "urls": patterns })).await.map(drop)
    }

    /// Sets the width of the window in CSS pixels.
    pub async fn set_width(&mut self, width: u32) -> Result<()> {
        let size = json!({"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": false});
        self.command("Emulation.setDeviceMetricsOverride", size).await.map(drop)
    }

    /// Evaluates a JavaScript expression on the page.
    pub async fn value(&mut self, expression: &str) -> Result<Value> {
        let parameters = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let answer = self.command("Runtime.evaluate", parameters).await?;
        ensure!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        Ok(answer["result"]["value"].clone())
    }

    /// Waits until a JavaScript expression is true.
    pub async fn until(&mut self, expression: &str) -> Result<()> {
        eventually(expression, async || {
            let value = self.value(expression).await?;
            Ok(Seen::when(value == true, value))
        })
        .await
    }

    /// Makes the page as wide and high as this, in CSS pixels.
    pub async fn resize(&mut self, width: u32, height: u32) -> Result<()> {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.command("Emulation.setDeviceMetricsOverride", size).await.map(drop)
    }

    /// Saves a screenshot under this name in the folder `GARENNE_TEST_SCREENSHOTS`, if that variable is set.
    pub async fn screenshot(&mut self, name: &str) -> Result<()> {
        let Some(folder) = std::env::var_os("GARENNE_TEST_SCREENSHOTS") else { return Ok(()) };
        self.resize(1280, 800).await?;
        self.capture(folder, name).await
    }

    /// The same, as wide and high as the page is.
    pub async fn picture(&mut self, name: &str) -> Result<()> {
        let Some(folder) = std::env::var_os("GARENNE_TEST_SCREENSHOTS") else { return Ok(()) };
        self.capture(folder, name).await
    }

    async fn capture(&mut self, folder: OsString, name: &str) -> Result<()> {
        let taken = self.command("Page.captureScreenshot", json!({"format": "png"})).await?;
        let bytes = BASE64_STANDARD.decode(taken["data"].as_str().context("no image")?)?;
        Ok(tokio::fs::write(PathBuf::from(folder).join(format!("{name}.png")), bytes).await?)
    }

    /// Roles of the page's elements that a person can use or that say something, but have no name for a screen reader.
    pub async fn unnamed(&mut self) -> Result<Vec<String>> {
        let tree = self.command("Accessibility.getFullAXTree", json!({})).await?;
        let nodes = tree["nodes"].as_array().context("no nodes")?;
        let named_roles = [
            "button",
            "link",
            "textbox",
            "searchbox",
            "checkbox",
            "radio",
            "combobox",
            "progressIndicator",
            "image",
            "table",
            "dialog",
        ];
        let role = |node: &Value| node["role"]["value"].as_str().unwrap_or_default().to_owned();
        let unnamed = nodes.iter().filter(|node| {
            let name = node["name"]["value"].as_str().unwrap_or_default();
            node["ignored"] != true && named_roles.contains(&role(node).as_str()) && name.trim().is_empty()
        });
        ensure!(nodes.len() > 100, "only {} nodes", nodes.len());
        Ok(unnamed.map(|node| format!("{} {}", role(node), node["properties"])).collect())
    }

    /// Types text into the focused element.
    pub async fn write(&mut self, text: &str) -> Result<()> {
        self.command("Input.insertText", json!({ "text": text })).await.map(drop)
    }

    /// Presses a key, such as `Enter` or `Tab`.
    pub async fn press(&mut self, key: &str) -> Result<()> {
        let code = match key {
            "Enter" => 13,
            "Tab" => 9,
            "ArrowLeft" => 37,
            other => u32::from(other.to_uppercase().bytes().next().unwrap_or(0)),
        };
        let text = match key {
            "Enter" => "\r",
            "Tab" | "ArrowLeft" => "",
            other => other,
        };
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" { text } else { "" };
            let event = json!({"type": kind, "key": key, "windowsVirtualKeyCode": code, "text": text});
            self.command("Input.dispatchKeyEvent", event).await?;
        }
        Ok(())
    }
}
