//! Who may send: tokens from a file that is read again when it changes, and devices known by their
//! certificate.

use std::{
    collections::HashMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use garenne_common::config::ConfigError;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use sha2::{Digest, Sha256};

use super::refusal::Refusal;

mod file;

/// The SHA-256 of a token. Only hashes are kept, here and in the file: who reads either has no token.
type Hash = [u8; 32];

/// The other end of a connection.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    /// The subject of its certificate.
    pub(super) device: Option<Arc<str>>,
    flags: Arc<Flags>,
}

/// What is known of a connection so far; shared by all clones of its peer.
#[derive(Debug, Default)]
struct Flags {
    authenticated: AtomicBool,
    refused: Arc<AtomicBool>,
}

impl Peer {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self { address, device: None, flags: Arc::default() }
    }

    /// The same connection, now that its certificate is known.
    pub(super) fn with_device(&self, device: Option<Arc<str>>) -> Self {
        Self { device, ..self.clone() }
    }

    /// Whether it may send at all: it has shown a token or a certificate, or none is asked for.
    pub(super) fn is_authenticated(&self) -> bool {
        self.flags.authenticated.load(Ordering::Relaxed)
    }

    /// Set once a request was refused, whose body may be unread.
    pub(super) fn refused(&self) -> &Arc<AtomicBool> {
        &self.flags.refused
    }
}

/// Somebody who may send.
#[derive(Clone)]
pub(super) struct Caller {
    name: Arc<str>,
    /// The only device whose readings it may send.
    device: Option<Arc<str>>,
    limit: Option<Arc<RateLimit>>,
    /// By which token, and as of which reading of the file.
    token: Option<(Hash, u64)>,
}

pub(super) struct RateLimit {
    per_second: u32,
    burst: u32,
    limiter: DefaultDirectRateLimiter,
}

impl RateLimit {
    /// `per_second` records on the long run; one request may be as large as a request may be.
    fn new(per_second: u32, largest: u32) -> Option<Self> {
        let burst = per_second.max(largest);
        let quota = Quota::per_second(per_second.try_into().ok()?).allow_burst(burst.try_into().ok()?);
        Some(Self { per_second, burst, limiter: RateLimiter::direct(quota) })
    }

    fn take(&self, records: usize) -> Result<(), Refusal> {
        let records = u32::try_from(records).unwrap_or(u32::MAX).min(self.burst);
        let Ok(records) = records.try_into() else { return Ok(()) };
        let refused = |retry_after| Refusal::RateLimited { per_second: self.per_second, retry_after };
        match self.limiter.check_n(records) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(not_until)) => {
                use governor::clock::Clock;
                Err(refused(not_until.wait_time_from(governor::clock::DefaultClock::default().now())))
            }
            Err(_) => Err(refused(Duration::from_secs(1))),
        }
    }
}

impl Caller {
    fn anonymous() -> Self {
        Self { name: "anonymous".into(), device: None, limit: None, token: None }
    }

    /// For the audit log.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether it may send these records now.
    ///
    /// # Errors
    /// A foreign device, naming the record; or too many at once.
    pub(super) fn admit<'a>(
        &self,
        mut devices: impl ExactSizeIterator<Item = &'a str>,
    ) -> Result<(), Refusal> {
        let records = devices.len();
        if let Some(own) = &self.device
            && let Some((record, device)) = devices.by_ref().enumerate().find(|(_, device)| *device != &**own)
        {
            let (device, subject) = (device.to_owned(), own.to_string());
            return Err(Refusal::ForeignDevice { record, device, subject });
        }
        self.limit.as_ref().map_or(Ok(()), |limit| limit.take(records))
    }

    /// Whether it may send a task of this kind now. What a task's payload says of devices is not
    /// looked at, so that a device sends its readings as readings and nothing else.
    ///
    /// # Errors
    /// [`Refusal::DeviceTask`], or too many at once.
    pub(super) fn admit_task(&self, kind: &str) -> Result<(), Refusal> {
        if let Some(subject) = &self.device {
            let (kind, subject) = (kind.to_owned(), subject.to_string());
            return Err(Refusal::DeviceTask { kind, subject });
        }
        self.limit.as_ref().map_or(Ok(()), |limit| limit.take(1))
    }
}

/// Decides who may send.
pub struct Access {
    tokens: Option<Tokens>,
    /// Whether a certificate is asked for: then nobody is anonymous.
    certificates: bool,
}

struct Tokens {
    path: PathBuf,
    largest: u32,
    known: RwLock<Known>,
}

struct Known {
    callers: HashMap<Hash, Caller>,
    generation: u64,
    seen: Stamp,
}

impl Access {
    /// Everybody may send.
    pub fn open() -> Self {
        Self { tokens: None, certificates: false }
    }

    /// Whoever has a token of the file, or a certificate where `certificates` are asked for.
    /// `largest` is the most records one request may hold.
    ///
    /// # Errors
    /// The file cannot be read, or a line of it cannot be understood.
    pub fn new(tokens: Option<&Path>, certificates: bool, largest: usize) -> Result<Self, ConfigError> {
        let tokens = tokens
            .map(|path| {
                let largest = u32::try_from(largest).unwrap_or(u32::MAX);
                let callers = file::read(path, largest, 0).map_err(|problem| ConfigError::File {
                    what: "token file",
                    path: path.to_owned(),
                    origin: "setting tokens".to_owned(),
                    problem,
                })?;
                let known = RwLock::new(Known { callers, generation: 0, seen: stamp(path) });
                Ok(Tokens { path: path.to_owned(), largest, known })
            })
            .transpose()?;
        Ok(Self { tokens, certificates })
    }

    /// Whether senders have to show who they are.
    pub(super) fn is_required(&self) -> bool {
        self.tokens.is_some() || self.certificates
    }

    /// Who somebody is that shows this token, or none.
    ///
    /// # Errors
    /// [`Refusal::Unauthorized`].
    pub(super) fn caller(&self, peer: &Peer, token: Option<&str>) -> Result<Caller, Refusal> {
        let caller = self.identify(peer, token)?;
        peer.flags.authenticated.store(true, Ordering::Relaxed);
        Ok(caller)
    }

    fn identify(&self, peer: &Peer, token: Option<&str>) -> Result<Caller, Refusal> {
        let device = peer.device.clone();
        match (&self.tokens, token) {
            (Some(tokens), Some(token)) => {
                let caller = tokens.caller(&Sha256::digest(token.as_bytes()).into());
                caller
                    .map(|caller| Caller { device, ..caller })
                    .ok_or(Refusal::Unauthorized("this one is not known"))
            }
            _ if device.is_some() => {
                let name = device.clone().unwrap_or_else(|| "device".into());
                Ok(Caller { name, device, limit: None, token: None })
            }
            (None, _) if !self.certificates => Ok(Caller::anonymous()),
            (None, _) => Err(Refusal::Unauthorized("a client certificate")),
            (Some(_), None) => Err(Refusal::Unauthorized("there is none")),
        }
    }

    /// Whether a caller on a long connection still may send: its token may be gone by now.
    ///
    /// # Errors
    /// [`Refusal::Unauthorized`].
    pub(super) fn still(&self, caller: &mut Caller) -> Result<(), Refusal> {
        let (Some(tokens), Some((hash, generation))) = (&self.tokens, caller.token) else { return Ok(()) };
        if tokens.read().generation == generation {
            return Ok(());
        }
        let device = caller.device.clone();
        let renewed = tokens.caller(&hash).ok_or(Refusal::Unauthorized("this one is not known any more"))?;
        *caller = Caller { device, ..renewed };
        Ok(())
    }

    /// Looks at the file now and then, and reads it again when it has changed. A file that cannot be
    /// understood changes nothing: nobody is locked out by a slip.
    pub async fn watch(&self, every: Duration) {
        let Some(tokens) = &self.tokens else { return std::future::pending().await };
        let mut tick = tokio::time::interval(every);
        loop {
            tick.tick().await;
            tokens.refresh();
        }
    }
}

impl Tokens {
    fn read(&self) -> std::sync::RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn caller(&self, hash: &Hash) -> Option<Caller> {
        self.read().callers.get(hash).cloned()
    }

    fn refresh(&self) {
        let seen = stamp(&self.path);
        let generation = {
            let known = self.read();
            if known.seen == seen {
                return;
            }
            known.generation + 1
        };
        let read = file::read(&self.path, self.largest, generation);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.seen = seen;
        match read {
            Ok(callers) => {
                tracing::info!(file = %self.path.display(), tokens = callers.len(), "tokens read again");
                known.callers = callers;
                known.generation = generation;
            }
            Err(problem) => {
                tracing::error!(file = %self.path.display(), problem, "token file not taken over; the tokens stay as they were");
            }
        }
    }
}

/// What tells a file that has changed.
pub(super) type Stamp = Option<(SystemTime, u64)>;

/// When the file was written and how long it is: editors may do one without the other.
pub(super) fn stamp(path: &Path) -> Stamp {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

#[cfg(test)]
mod tests;
