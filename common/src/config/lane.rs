//! A lane: one queue on the broker, or several shards, and one local pool whose capacity is their total prefetch.

mod celery;

use std::{fmt::Display, time::Duration};

use garenne_protocol::{
    task::{CeleryZone, FOREIGN_KIND, Kind, KindError, bindings_meet, matches_binding},
    topology::{LaneExchange, LaneSpec, MOST_SHARDS},
};
use serde::{Deserialize, Deserializer, Serialize, de::Error};
use serde_json::{Map, Value};

pub(super) use celery::validate_queues;

use super::{Concurrency, Invalid, concurrency::EXPECTED as RANGE, list, text_or_number::text_or_number};

/// Largest prefetch that quorum queues accept.
pub const MOST_PREFETCH: u16 = 2000;

/// Longest lane name, in bytes: `<prefix>.retry.<lane>.<delay>` must fit AMQP's 255 bytes.
pub const LONGEST_NAME: usize = 32;

/// Longest name of an exchange and longest binding in AMQP, in bytes.
const LONGEST_SHORT_STRING: usize = 255;

/// The quarantine's name in lists of lanes.
const RESERVED: &str = "quarantine";

/// The binding of a lane of foreign messages that has no other.
const EVERYTHING: &str = "#";

/// One lane's settings.
///
/// ```
/// # use garenne_common::config::Lane;
/// let mail = Lane::bound_to(["email.#"]).concurrency(1..=8).prefetch(50);
/// ```
///
/// A struct literal ends with `..Lane::default()`, because later versions may have further fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lane {
    /// Most messages delivered and not yet settled, 1 to 2,000: AMQP prefetch and pool capacity. Default: 200.
    #[serde(deserialize_with = "up_to::<MOST_PREFETCH, _>")]
    pub prefetch: u16,
    /// Tasks that run concurrently; `max` is at most `prefetch`. Default: 1..4.
    pub concurrency: Concurrency,
    /// Most tasks of one key, such as a device, that run concurrently; at least 1. Unset, only kinds that say so are
    /// limited, to half of the lane's workers.
    #[serde(deserialize_with = "optional_count")]
    pub max_per_key: Option<u16>,
    /// Number of queues that share the lane's tasks by task key, 1 to 16 and at most `prefetch`, which is divided among
    /// them. Default: 1.
    #[serde(deserialize_with = "up_to::<MOST_SHARDS, _>")]
    pub shards: u16,
    /// Topic patterns of the routing keys that this lane receives; empty if tasks are only published to it
    /// directly.
    #[serde(with = "list")]
    pub bindings: Vec<String>,
    /// Whether the lane has no bindings on purpose: tasks are only published to it directly. In a file,
    /// `bindings = []` says so.
    #[serde(skip)]
    pub direct: bool,
    /// The maps of a lane of foreign messages, tried in this order: files, or shipped ones such as
    /// `builtin:zigbee2mqtt`. Such a lane receives no tasks.
    #[serde(with = "list")]
    pub maps: Vec<String>,
    /// The exchange that foreign messages come from. Unset, it is `garenne.mqtt`, and the lane receives everything.
    pub exchange: Option<String>,
    /// Whether messages of Celery's senders (protocol 2, JSON) are tasks of this lane.
    pub celery: bool,
    /// A queue that others declare, such as that of a Celery application, and that workers consume besides the lane's own.
    pub queue: Option<String>,
    /// The queue that receives, unchanged, the calls of Celery's senders that a worker has no handler for. Celery's workers
    /// consume it.
    pub celery_pass_on: Option<String>,
    /// The zone of times of Celery's senders that have no offset.
    pub celery_timezone: CeleryZone,
    /// Whether the lane receives the tasks that no lane's bindings match; at most one lane.
    pub catch_all: bool,
    /// The kind of messages whose routing key and `type` property contain none.
    pub default_kind: Option<String>,
    /// The queue's consumer timeout: how long the broker waits for a settlement; unset, the broker's default (30
    /// min).
    #[serde(with = "humantime_serde")]
    pub consumer_timeout: Option<Duration>,
}

impl Default for Lane {
    fn default() -> Self {
        Self {
            prefetch: 200,
            concurrency: Concurrency::default(),
            max_per_key: None,
            shards: 1,
            bindings: Vec::new(),
            direct: false,
            maps: Vec::new(),
            exchange: None,
            celery: false,
            queue: None,
            celery_pass_on: None,
            celery_timezone: CeleryZone::default(),
            catch_all: false,
            default_kind: None,
            consumer_timeout: None,
        }
    }
}

impl Lane {
    /// A lane with these bindings and default settings.
    pub fn bound_to(bindings: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { bindings: bindings.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// A lane without bindings: tasks are only published to it directly.
    pub fn direct() -> Self {
        Self { direct: true, ..Self::default() }
    }

    /// Sets how many messages the worker holds, 1 to 2,000.
    #[must_use]
    pub fn prefetch(self, prefetch: u16) -> Self {
        Self { prefetch, ..self }
    }

    /// Sets how many tasks run at once: a range such as `1..=8`, or a number.
    #[must_use]
    pub fn concurrency(self, concurrency: impl Into<Concurrency>) -> Self {
        Self { concurrency: concurrency.into(), ..self }
    }

    /// Sets how many tasks of one key run at once in a worker, at least 1.
    #[must_use]
    pub fn max_per_key(self, max_per_key: u16) -> Self {
        Self { max_per_key: Some(max_per_key), ..self }
    }

    /// Sets the number of queues, 1 to 16.
    #[must_use]
    pub fn shards(self, shards: u16) -> Self {
        Self { shards, ..self }
    }

    /// Makes it the lane of all kinds that no other lane is bound to.
    #[must_use]
    pub fn catch_all(self) -> Self {
        Self { catch_all: true, ..self }
    }

    /// Whether the lane receives nothing, and nobody said that it should not.
    pub(super) fn is_unbound(&self) -> bool {
        !self.direct && self.has_no_source()
    }

    /// Whether no exchange routes messages to the lane.
    pub(super) fn has_no_source(&self) -> bool {
        self.bindings.is_empty() && self.maps.is_empty() && self.queue.is_none() && !self.catch_all
    }

    /// Whether the lane's messages are foreign ones, which pass its maps.
    pub fn is_mapped(&self) -> bool {
        !self.maps.is_empty()
    }

    /// Whether the lane's bindings match a kind, or all of a pattern. A lane with maps takes only the kind of foreign messages.
    pub fn is_bound_to(&self, kind: &str) -> bool {
        match self.is_mapped() {
            true => kind == FOREIGN_KIND,
            false => self.bindings.iter().any(|binding| matches_binding(binding, kind)),
        }
    }

    /// Whether the lane receives tasks of a kind, or of some kinds of a pattern: by its bindings, or as its default kind.
    pub fn receives(&self, kinds: &str) -> bool {
        self.default_kind.as_deref().is_some_and(|kind| matches_binding(kinds, kind))
            || match self.is_mapped() {
                true => kinds == FOREIGN_KIND,
                false => self.bindings.iter().any(|binding| bindings_meet(binding, kinds)),
            }
    }

    /// Whether the lane gives its consumers tasks of a kind, or of some kinds of a pattern, that it [receives](Self::receives)
    /// or may hold. The catch-all lane may hold any kind, and so may a lane that tasks are only published to directly.
    pub(super) fn gives(&self, kinds: &str) -> bool {
        self.catch_all || self.holds_any() || self.receives(kinds)
    }

    /// Whether tasks of any kind arrive otherwise than by bindings: in a queue of others, or published to the lane directly.
    pub(super) fn holds_any(&self) -> bool {
        let is_unbound = self.bindings.is_empty() && self.default_kind.is_none() && !self.catch_all;
        !self.is_mapped() && (self.queue.is_some() || is_unbound)
    }

    /// The patterns of the kinds of tasks that clients may publish to the lane.
    pub fn task_bindings(&self) -> &[String] {
        if self.is_mapped() { &[] } else { &self.bindings }
    }

    /// The exchange of foreign messages, if the lane has maps.
    pub fn foreign_exchange(&self) -> Option<LaneExchange> {
        let of = |exchange: &String| LaneExchange::Foreign(exchange.clone());
        self.is_mapped().then(|| self.exchange.as_ref().map_or(LaneExchange::Mqtt, of))
    }

    /// The lane for the topology.
    pub(super) fn spec(&self, name: &str) -> LaneSpec {
        let mut bindings = self.bindings.clone();
        if self.is_mapped() && bindings.is_empty() {
            bindings.push(EVERYTHING.to_owned());
        }
        LaneSpec {
            name: name.to_owned(),
            exchange: self.foreign_exchange().unwrap_or_default(),
            bindings,
            catch_all: self.catch_all,
            shards: self.shards,
            celery: self.celery,
            queue: self.queue.clone(),
            consumer_timeout: self.consumer_timeout,
        }
    }

    /// This lane with other values of some settings.
    pub(super) fn with(&self, settings: Map<String, Value>) -> serde_json::Result<Self> {
        let mut all: Map<String, Value> = serde_json::from_value(serde_json::to_value(self)?)?;
        all.extend(settings);
        Self::deserialize(Value::Object(all))
    }

    /// Returns the first invalid field of the lane with this name. `prefix` begins the names of Garenne's own
    /// exchanges.
    pub(super) fn validate(&self, name: &str, prefix: &str) -> Result<(), Invalid> {
        validate_name(name)?;
        validate_numbers(name, self)?;
        validate_kinds(name, self)?;
        validate_source(name, self, prefix)?;
        celery::validate(name, self, prefix)
    }
}

fn validate_name(name: &str) -> Result<(), Invalid> {
    let (path, value) = (format!("lanes.{name}"), format_args!("{name:?}"));
    Invalid::unless(name != RESERVED, &path, value, "the name is reserved, expected another one")?;
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
    let valid = (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(allowed);
    Invalid::unless(
        valid,
        &path,
        value,
        format!("expected a lane name of 1 to {LONGEST_NAME} of a-z 0-9 - _"),
    )
}

fn validate_numbers(name: &str, lane: &Lane) -> Result<(), Invalid> {
    let &Lane { prefetch, concurrency, shards, .. } = lane;
    let check = |valid: bool, setting: &str, value: u16, problem: String| {
        Invalid::unless(valid, format!("lanes.{name}.{setting}"), value, problem)
    };
    if !concurrency.is_valid() {
        return Err(Invalid::new(format!("lanes.{name}.concurrency"), concurrency, RANGE));
    }
    let in_range = (1..=MOST_PREFETCH).contains(&prefetch);
    check(in_range, "prefetch", prefetch, format!("expected 1 to {MOST_PREFETCH}"))?;
    let (most, of) = (concurrency.max, format!("lanes.{name}.concurrency = {concurrency}"));
    let problem = format!("expected at least {most}, the maximum of {of}");
    check(usize::from(prefetch) >= most, "prefetch", prefetch, problem)?;
    check((1..=MOST_SHARDS).contains(&shards), "shards", shards, format!("expected 1 to {MOST_SHARDS}"))?;
    let of = format!("lanes.{name}.shards = {shards}");
    check(lane.max_per_key != Some(0), "max_per_key", 0, "expected 1 or more".to_owned())?;
    let problem = format!("expected at least {shards}, one for each queue of {of}");
    check(prefetch >= shards, "prefetch", prefetch, problem)
}

fn validate_kinds(name: &str, lane: &Lane) -> Result<(), Invalid> {
    let setting = |field: &str| format!("lanes.{name}.{field}");
    if let Some(long) = lane.bindings.iter().find(|binding| binding.len() > LONGEST_SHORT_STRING) {
        let problem = format!("expected at most {LONGEST_SHORT_STRING} bytes, it has {}", long.len());
        return Err(Invalid::new(setting("bindings"), format_args!("{long:?}"), problem));
    }
    let is_word = |word: &str| {
        matches!(word, "*" | "#") || word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
    };
    let matches_none = |binding: &&String| binding.is_empty() || !binding.split('.').all(is_word);
    if let Some(none) = lane.task_bindings().iter().find(matches_none) {
        let problem = "no kind matches it: expected words of letters, digits, _ and -, `*` for a word and `#` for any number of words, with points between them";
        return Err(Invalid::new(setting("bindings"), format_args!("{none:?}"), problem));
    }
    let Some(kind) = &lane.default_kind else { return Ok(()) };
    let refused =
        |error: KindError| Invalid::new(setting("default_kind"), format_args!("{kind:?}"), error.to_string());
    Kind::parse(kind).map(drop).map_err(refused)
}

/// Checks what only lanes of foreign messages have, and what they do not have. `prefix` begins the names of Garenne's own
/// exchanges.
fn validate_source(name: &str, lane: &Lane, prefix: &str) -> Result<(), Invalid> {
    let refuse = |setting: &str, value: &dyn Display, problem: String| {
        Err(Invalid::new(format!("lanes.{name}.{setting}"), value, problem))
    };
    if !lane.is_mapped() {
        let problem = "is for foreign messages, expected lanes.NAME.maps too".replace("NAME", name);
        let exchange = lane.exchange.as_ref();
        return exchange.map_or(Ok(()), |it| refuse("exchange", &format_args!("{it:?}"), problem));
    }
    let because = format!("because lanes.{name}.maps is set: the lane receives foreign messages");
    if lane.shards > 1 {
        return refuse("shards", &lane.shards, format!("expected 1 {because}, which have no key"));
    }
    if lane.catch_all {
        return refuse("catch_all", &true, format!("expected false {because}"));
    }
    if let Some(kind) = &lane.default_kind {
        return refuse("default_kind", &format_args!("{kind:?}"), format!("expected none {because}"));
    }
    match &lane.exchange {
        None if lane.bindings.iter().any(|binding| binding != EVERYTHING) => {
            let problem =
                "expected none: what no binding matches would be lost. Let a map skip it, or set exchange";
            refuse("bindings", &format_args!("{:?}", lane.bindings), problem.to_owned())
        }
        Some(exchange) if !(1..=LONGEST_SHORT_STRING).contains(&exchange.len()) => {
            let problem = format!("expected 1 to {LONGEST_SHORT_STRING} bytes");
            refuse("exchange", &format_args!("{exchange:?}"), problem)
        }
        Some(exchange) if exchange.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.')) => {
            let problem = format!(
                "expected an exchange of other programs, or none for {prefix}.mqtt; {prefix}.… are Garenne's own"
            );
            refuse("exchange", &format_args!("{exchange:?}"), problem)
        }
        _ => Ok(()),
    }
}

/// A whole number, or text that is one. Numbers that do not fit the type get the same error as those over `MOST`.
fn up_to<'de, const MOST: u16, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    text_or_number(deserializer)
        .map_err(|_: D::Error| D::Error::custom(format!("out of range, expected 1 to {MOST}")))
}

/// A whole number, or text that is one, or nothing.
fn optional_count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u16>, D::Error> {
    #[derive(Deserialize)]
    struct Count(#[serde(deserialize_with = "text_or_number")] u16);

    let count = Option::<Count>::deserialize(deserializer);
    count
        .map(|count| count.map(|Count(count)| count))
        .map_err(|_: D::Error| D::Error::custom(format!("out of range, expected 1 to {}", u16::MAX)))
}
