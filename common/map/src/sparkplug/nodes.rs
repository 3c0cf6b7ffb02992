//! The metrics that the births of edge nodes and devices announced.

use std::{collections::HashMap, sync::Arc};

use garenne_protocol::sensor::parse::check_name;
use lru::LruCache;

use super::payload::Payload;
use crate::{
    limits::{MAX_METRICS, MAX_NODE_METRICS, MAX_NODES},
    unmapped::Reason,
};

/// The edge nodes by group and name. Beyond the limits, the one that was used least recently is forgotten.
#[derive(Debug)]
pub(crate) struct EdgeNodes {
    nodes: LruCache<Box<str>, EdgeNode>,
    /// The sum of the nodes' sizes.
    size: usize,
}

/// Metrics that the births of an edge node and its devices announced.
#[derive(Debug, Default)]
pub(super) struct EdgeNode {
    /// The number of the session, from the node's birth.
    pub(super) session: Option<u64>,
    /// By the device's name; an empty one is the node.
    devices: HashMap<Box<str>, Announcement>,
}

/// The metrics of one birth.
#[derive(Debug, Default)]
struct Announcement {
    metrics: HashMap<Arc<str>, u32>,
    aliases: HashMap<u64, Announced>,
}

/// A metric of a birth.
#[derive(Debug)]
pub(super) struct Announced {
    pub(super) name: Arc<str>,
    pub(super) datatype: u32,
}

impl Default for EdgeNodes {
    fn default() -> Self {
        let nodes = LruCache::unbounded();
        Self { nodes, size: 0 }
    }
}

impl EdgeNodes {
    /// Replaces what is known of the node (an empty device) and its devices, or of one device. An error replaces
    /// nothing.
    pub(super) fn announce(&mut self, key: &str, device: &str, payload: &Payload) -> Result<(), Reason> {
        let new = Announcement::of(payload)?;
        let mut node = self.nodes.pop(key).unwrap_or_default();
        self.size -= node.size();
        let replaced = node.devices.get(device).map_or(0, Announcement::size);
        let others = if device.is_empty() { 0 } else { node.size() - replaced };
        if others + new.size() > MAX_NODE_METRICS {
            self.put(key, node);
            return Err(Reason::TooManyMetrics);
        }
        if device.is_empty() {
            node = EdgeNode { session: payload.session(), ..EdgeNode::default() };
        }
        node.devices.insert(device.into(), new);
        self.put(key, node);
        while self.nodes.len() > MAX_NODES || self.size > MAX_METRICS {
            let Some((_, forgotten)) = self.nodes.pop_lru() else { break };
            self.size -= forgotten.size();
        }
        Ok(())
    }

    /// The node, as the one that was used last.
    pub(super) fn get(&mut self, key: &str) -> Option<&EdgeNode> {
        self.nodes.get(key)
    }

    fn put(&mut self, key: &str, node: EdgeNode) {
        self.size += node.size();
        self.nodes.put(key.into(), node);
    }
}

impl EdgeNode {
    /// The metric with an alias in the births of a device, or of the node (an empty device).
    pub(super) fn by_alias(&self, device: &str, alias: u64) -> Option<&Announced> {
        self.devices.get(device)?.aliases.get(&alias)
    }

    pub(super) fn datatype(&self, device: &str, name: &str) -> Option<u32> {
        self.devices.get(device)?.metrics.get(name).copied()
    }

    /// The devices' names, sorted, so that the same death gives the same readings.
    pub(super) fn devices(&self) -> Vec<&str> {
        let mut names: Vec<&str> =
            self.devices.keys().map(|name| &**name).filter(|name| !name.is_empty()).collect();
        names.sort_unstable();
        names
    }

    fn size(&self) -> usize {
        self.devices.values().map(Announcement::size).sum()
    }
}

impl Announcement {
    fn of(payload: &Payload) -> Result<Self, Reason> {
        let mut new = Self::default();
        for metric in &payload.metrics {
            let Some(name) = metric.given_name() else { continue };
            check_name("metric", name).map_err(|error| Reason::Invalid(error.in_record(0)))?;
            let (name, datatype) = (Arc::<str>::from(name), metric.datatype.unwrap_or_default());
            if let Some(alias) = metric.alias {
                new.aliases.insert(alias, Announced { name: Arc::clone(&name), datatype });
            }
            new.metrics.insert(name, datatype);
        }
        Ok(new)
    }

    /// At least 1, so that births without metrics count.
    fn size(&self) -> usize {
        1 + self.metrics.len().max(self.aliases.len())
    }
}
