//! Delivers alerts to webhooks: one batch queue per webhook, one circuit breaker and one semaphore per host.

use std::{
    collections::BTreeMap,
    num::NonZeroUsize,
    sync::{Arc, Mutex},
    time::Duration,
};

use garenne_common::{
    backoff::Backoff,
    config::ConfigError,
    lock::lock,
    reloaded::Reloaded,
    resilience::{BatchConfig, BatchError, Batcher, Breaker, BreakerConfig, Retry, Semaphore},
};
use hyper::header::HeaderMap;
use lru::LruCache;

use super::{
    address::AllowedAddresses,
    batch_sender::{BatchSender, Destination},
    delivery::{Delivered, DeliveryError, OutgoingAlert},
    settings::{AlertSettings, DEFAULT_WEBHOOK, Webhook, WebhookUrl},
    webhook_client::WebhookClient,
};

/// Queues and breakers that are kept, at most. The least recently used ones are removed.
const MAX_KEPT: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// Opens a host's circuit for 30 s after five failures without an error-free minute.
const BREAKER: BreakerConfig = BreakerConfig {
    failures: 5,
    successes: 2,
    error_free: Duration::from_secs(60),
    open_for: Duration::from_secs(30),
};

/// The pauses before immediate retries.
const RETRY_BACKOFF: Backoff =
    Backoff::limited(Duration::from_millis(200), Duration::from_secs(2)).with_jitter();

pub(super) struct WebhookSender {
    settings: AlertSettings,
    /// The webhooks of the settings, with what their files hold now.
    webhooks: BTreeMap<String, Reloaded<Webhook>>,
    breaker: BreakerConfig,
    backoff: Backoff,
    client: Arc<WebhookClient>,
    /// The addresses that URLs of payloads may have.
    payload_addresses: AllowedAddresses,
    /// By [`Destination::key`]. Running tasks hold the queues that they use, even if those are removed here.
    queues: Mutex<LruCache<String, Arc<WebhookQueue>>>,
    /// By [`Destination::host_key`].
    hosts: Mutex<LruCache<String, Host>>,
}

/// The state that the webhooks of one host share.
struct Host {
    breaker: Breaker,
    permits: Semaphore,
}

/// The alerts that wait for a batch to one webhook.
struct WebhookQueue {
    sender: Arc<BatchSender>,
    batcher: Batcher<OutgoingAlert, DeliveryError>,
}

impl WebhookSender {
    pub(super) fn new(settings: AlertSettings) -> Result<Self, ConfigError> {
        Self::with_resilience(settings, BREAKER, RETRY_BACKOFF)
    }

    fn with_resilience(
        settings: AlertSettings,
        breaker: BreakerConfig,
        backoff: Backoff,
    ) -> Result<Self, ConfigError> {
        let webhooks = settings.webhooks.iter().map(|(name, webhook)| {
            let (files, webhook) = (webhook.files.values().cloned().collect(), webhook.clone());
            Ok((name.clone(), Reloaded::new("webhooks", files, move || webhook.read_again())?))
        });
        let webhooks = webhooks.collect::<Result<_, ConfigError>>()?;
        let client = Arc::new(WebhookClient::new());
        if settings.has_destinations() {
            client.load_authorities();
        }
        let payload_addresses = AllowedAddresses::PublicAnd(settings.payload_urls.networks.as_slice().into());
        let (queues, hosts) = (LruCache::new(MAX_KEPT).into(), LruCache::new(MAX_KEPT).into());
        Ok(Self { settings, webhooks, breaker, backoff, client, payload_addresses, queues, hosts })
    }

    /// Resolves an alert's `webhook` or `url`. Requests to a URL have neither signature nor additional headers.
    pub(super) fn destination(
        &self,
        webhook: Option<&str>,
        url: Option<&str>,
    ) -> Result<Destination, DeliveryError> {
        let invalid = DeliveryError::InvalidDestination;
        if let Some(url) = url {
            let url: WebhookUrl = url.parse().map_err(|error| invalid(format!("url: {error}")))?;
            self.settings.payload_urls.check(url.host()).map_err(invalid)?;
            let addresses = self.payload_addresses.clone();
            return Ok(Destination {
                webhook: None,
                url,
                addresses,
                secret: None,
                headers: HeaderMap::new(),
                generation: None,
            });
        }
        let name = webhook.unwrap_or(DEFAULT_WEBHOOK);
        let unknown = || invalid(format!("no webhook {name:?}: alert.webhooks.{name}.url is not set"));
        let current = self.webhooks.get(name).ok_or_else(unknown)?;
        current.refresh();
        let generation = current.generation();
        let webhook = current.get();
        Ok(Destination {
            webhook: Some(name.to_owned()),
            url: webhook.url.clone().expect("validated with the settings"),
            addresses: AllowedAddresses::Any,
            secret: webhook.secret.clone(),
            headers: webhook.header_map().expect("validated with the settings"),
            generation: (!webhook.files.is_empty()).then_some(generation),
        })
    }

    /// Delivers an alert, in one batch with others to the same webhook.
    pub(super) async fn deliver(
        &self,
        destination: Destination,
        alert: OutgoingAlert,
    ) -> Result<Delivered, Arc<DeliveryError>> {
        let queue = self.queue(destination);
        match queue.batcher.add(alert.clone()).await {
            Ok(()) => {}
            // One alert may have caused the rejection of the batch, so each is sent alone.
            Err(BatchError::Failed(error))
                if matches!(*error, DeliveryError::Rejected { batch_size: 2.., .. }) =>
            {
                queue.sender.send(vec![alert.clone()]).await.map_err(Arc::new)?;
            }
            Err(BatchError::Failed(error)) => return Err(error),
            Err(BatchError::Closed) => return Err(Arc::new(DeliveryError::Closed)),
        }
        alert.delivered.get().cloned().ok_or_else(|| Arc::new(DeliveryError::Closed))
    }

    fn queue(&self, destination: Destination) -> Arc<WebhookQueue> {
        let key = destination.key();
        Arc::clone(lock(&self.queues).get_or_insert(key, || Arc::new(self.start_queue(destination))))
    }

    fn start_queue(&self, destination: Destination) -> WebhookQueue {
        let mut hosts = lock(&self.hosts);
        let Host { breaker, permits } = hosts.get_or_insert(destination.host_key(), || Host {
            breaker: Breaker::new(self.breaker),
            permits: Semaphore::new(self.settings.per_host, self.settings.timeout),
        });
        let retry = Retry::new(self.backoff.clone(), self.settings.retries);
        let sender = Arc::new(BatchSender {
            destination,
            client: Arc::clone(&self.client),
            breaker: breaker.clone(),
            permits: permits.clone(),
            retry: retry.when(DeliveryError::is_transient),
            timeout: self.settings.timeout,
        });
        let config = BatchConfig { size: self.settings.batch, wait: self.settings.window };
        let batch_sender = Arc::clone(&sender);
        let batcher = Batcher::start(config, move |alerts| {
            let sender = Arc::clone(&batch_sender);
            async move { sender.send(alerts).await }
        });
        WebhookQueue { sender, batcher }
    }
}

#[cfg(test)]
mod tests;
