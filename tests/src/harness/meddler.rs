//! A proxy that reads what the broker says, frame by frame: it swallows one consumer's deliveries, holds what the
//! broker says for a while, or cuts every connection in the middle of a dialogue.

use std::{
    io,
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

use super::wait::{Seen, eventually};

mod frames;

pub use self::frames::Method;
use self::frames::{Frame, Swallowing};

/// What is done to what the broker says.
#[derive(Debug, Default)]
enum Rule {
    #[default]
    Pass,
    /// Deliveries to the consumer of this tag vanish until a consumer of that tag is made anew, as if the
    /// broker had forgotten it: heartbeats and all else go on.
    Forget(String),
    /// The connections end where this method has come so many times more, and nobody is let in afterwards.
    Cut { at: Method, before: usize },
    /// The connection on which this method comes next passes on nothing of the broker's for so long.
    Hold { at: Method, pause: Duration },
}

#[derive(Debug, Default)]
struct State {
    rule: Rule,
    swallowed: usize,
    held: usize,
    refused: usize,
}

/// A proxy in front of one broker. Dropped, it resets its connections.
#[derive(Debug)]
pub struct Meddler {
    url: String,
    shared: Shared,
    accepting: JoinHandle<()>,
}

#[derive(Clone, Debug)]
struct Shared {
    state: Arc<Mutex<State>>,
    /// Whether connections end, and nobody is let in.
    down: Arc<watch::Sender<bool>>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Meddler {
    /// A proxy in front of the broker of a URL.
    ///
    /// # Errors
    /// When the URL names no host and port, or no port can be had.
    pub async fn for_url(url: &str) -> Result<Self> {
        let mut url = reqwest::Url::parse(url).context("the broker's URL")?;
        let target = format!(
            "{}:{}",
            url.host_str().context("a URL without a host")?,
            url.port().context("a URL without a port")?
        );
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        url.set_host(Some("127.0.0.1"))?;
        url.set_port(Some(listener.local_addr()?.port())).ok().context("the proxy's port")?;
        let shared = Shared { state: Arc::default(), down: Arc::new(watch::channel(false).0) };
        let accepting = tokio::spawn(accept(listener, target, shared.clone()));
        Ok(Self { url: url.into(), shared, accepting })
    }

    /// The broker's URL through this proxy.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// From now on the consumer of this tag gets no delivery, until it is made anew.
    pub fn forget(&self, consumer_tag: &str) {
        self.shared.state().rule = Rule::Forget(consumer_tag.to_owned());
    }

    /// Deliveries that were swallowed.
    #[must_use]
    pub fn swallowed(&self) -> usize {
        self.shared.state().swallowed
    }

    /// Resets every connection instead of passing on this method of the broker's for the `nth` time (from
    /// 1), and those that come after it until [`heal`](Self::heal).
    pub fn cut_at(&self, method: Method, nth: usize) {
        self.shared.state().rule = Rule::Cut { at: method, before: nth.saturating_sub(1) };
    }

    /// The connection on which this method of the broker's comes next passes on nothing of the broker's for so
    /// long, then everything in its order.
    pub fn hold_at(&self, method: Method, pause: Duration) {
        self.shared.state().rule = Rule::Hold { at: method, pause };
    }

    /// How many connections were held, and go on.
    #[must_use]
    pub fn held(&self) -> usize {
        self.shared.state().held
    }

    /// Waits until it has cut the connections, and somebody has come in vain so many times.
    ///
    /// # Errors
    /// When that does not happen.
    pub async fn until_refused(&self, times: usize) -> Result<()> {
        eventually(format!("{times} connections in vain"), async || {
            let (down, refused) = (*self.shared.down.borrow(), self.shared.state().refused);
            Ok(Seen::when(down && refused >= times, format_args!("cut: {down}, in vain: {refused}")))
        })
        .await
    }

    /// Lets everything pass again.
    pub fn heal(&self) {
        self.shared.state().rule = Rule::Pass;
        self.shared.down.send_replace(false);
    }
}

impl Drop for Meddler {
    fn drop(&mut self) {
        self.shared.down.send_replace(true);
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, target: String, shared: Shared) {
    while let Ok((client, _)) = listener.accept().await {
        let down = *shared.down.borrow();
        if down {
            shared.state().refused += 1;
            let _ = client.set_zero_linger();
            continue;
        }
        let (target, shared) = (target.clone(), shared.clone());
        tokio::spawn(async move { carry(client, &target, &shared).await });
    }
}

async fn carry(mut client: TcpStream, target: &str, shared: &Shared) {
    let mut down = shared.down.subscribe();
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    let whole = {
        let (mut from_client, mut to_client) = client.split();
        let (mut from_server, mut to_server) = server.split();
        let there = async {
            tokio::io::copy(&mut from_client, &mut to_server).await?;
            to_server.shutdown().await
        };
        let back = async {
            pass_on(&mut from_server, &mut to_client, shared).await?;
            to_client.shutdown().await
        };
        tokio::select! {
            biased;
            // An error means that the proxy is gone.
            _ = down.wait_for(|down| *down) => false,
            ended = async { tokio::try_join!(there, back) } => ended.is_ok(),
        }
    };
    if !whole {
        let _ = client.set_zero_linger();
        let _ = server.set_zero_linger();
    }
}

/// Passes on what the broker says, as the rule has it.
async fn pass_on(
    server: &mut (impl AsyncReadExt + Unpin),
    client: &mut (impl AsyncWriteExt + Unpin),
    shared: &Shared,
) -> io::Result<()> {
    let (mut read, mut passed) = (Vec::new(), Vec::new());
    let mut swallowing = Swallowing::default();
    loop {
        if server.read_buf(&mut read).await? == 0 {
            return client.write_all(&read).await;
        }
        let mut taken = 0;
        while let Some(frame) = Frame::first(&read[taken..]) {
            taken += frame.whole.len();
            let verdict = judge(&frame, &mut swallowing, &mut shared.state());
            match verdict {
                Verdict::Hold(pause) => {
                    client.write_all(&passed).await?;
                    passed.clear();
                    // This is the fault itself.
                    tokio::time::sleep(pause).await;
                    shared.state().held += 1;
                    passed.extend_from_slice(frame.whole);
                }
                Verdict::Pass => passed.extend_from_slice(frame.whole),
                Verdict::Swallow => {}
                Verdict::Cut => {
                    shared.down.send_replace(true);
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
            }
        }
        read.drain(..taken);
        client.write_all(&passed).await?;
        passed.clear();
    }
}

enum Verdict {
    Pass,
    Hold(Duration),
    Swallow,
    Cut,
}

fn judge(frame: &Frame<'_>, swallowing: &mut Swallowing, state: &mut State) -> Verdict {
    if swallowing.takes(frame) {
        return Verdict::Swallow;
    }
    match &mut state.rule {
        Rule::Forget(tag) if frame.consumer() == Some(tag.as_str()) => {
            if frame.method() == Some(Method::CONSUME_OK) {
                state.rule = Rule::Pass;
                return Verdict::Pass;
            }
            state.swallowed += 1;
            swallowing.content_of(frame);
            Verdict::Swallow
        }
        Rule::Cut { at, before } if frame.method() == Some(*at) => {
            if *before == 0 {
                return Verdict::Cut;
            }
            *before -= 1;
            Verdict::Pass
        }
        Rule::Hold { at, pause } if frame.method() == Some(*at) => {
            let pause = *pause;
            state.rule = Rule::Pass;
            Verdict::Hold(pause)
        }
        _ => Verdict::Pass,
    }
}
