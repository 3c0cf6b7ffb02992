//! The queues that results may be sent to.
//!
//! A task names its reply queue, and the worker may write to every queue of the virtual host. Without a bound, a
//! publisher could let it write to queues that the publisher itself may not write to, such as `garenne.directives`.

use garenne_common::{
    config::{Invalid, list},
    pattern::NamePattern,
};
use garenne_protocol::quoted;
use serde::{Deserialize, Serialize};

/// What a client's direct reply queue is called in a message that it has published. The broker adds a part that nobody
/// can guess and that ends with the client's channel.
const DIRECT_REPLY: &str = "amq.rabbitmq.reply-to.";

/// The property in `garenne_headers_ignored_total`.
pub(crate) const REPLY_TO: &str = "reply_to";

/// The setting `reply_queues`: the queues that results may be sent to besides direct reply queues. Names, or prefixes
/// with `*` at their end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ReplyQueues(#[serde(with = "list")] pub Vec<String>);

impl ReplyQueues {
    /// # Errors
    /// The first invalid pattern, or the first that covers a queue of the fleet with this prefix.
    pub(crate) fn validate(&self, prefix: &str) -> Result<(), Invalid> {
        let own = format!("{prefix}.");
        for text in &self.0 {
            let invalid = |problem: &str| Invalid::new("reply_queues", quoted(text), problem);
            NamePattern::parse(text)
                .map_err(|_| invalid("expected the name of a queue, or a prefix and \"*\" at its end"))?;
            let covers_own = match text.strip_suffix('*') {
                Some(start) => start.starts_with(&own) || own.starts_with(start),
                None => text.starts_with(&own),
            };
            if covers_own {
                let problem =
                    format!("covers queues of the fleet ({own}*), which publishers may not write to");
                return Err(invalid(&problem));
            }
        }
        Ok(())
    }

    /// Whether a result may be sent to this queue.
    pub(crate) fn allow(&self, queue: &str) -> bool {
        // Validated at the start, and not parsed again for each task.
        let matches = |pattern: &String| match pattern.strip_suffix('*') {
            Some(start) => queue.starts_with(start),
            None => pattern == queue,
        };
        queue.starts_with(DIRECT_REPLY) || self.0.iter().any(matches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(patterns: &[&str]) -> ReplyQueues {
        ReplyQueues(patterns.iter().map(|pattern| (*pattern).to_owned()).collect())
    }

    #[test]
    fn direct_reply_queues_and_those_of_the_setting_are_allowed() {
        let allowed = |patterns: &[&str]| {
            let names = [
                "amq.rabbitmq.reply-to.g1h2AA",
                "amq.rabbitmq.reply-to",
                "amq.gen-x",
                "rpc.a",
                "garenne.dead",
                "",
            ];
            names.map(|name| queues(patterns).allow(name))
        };
        assert_eq!(allowed(&[]), [true, false, false, false, false, false]);
        assert_eq!(allowed(&["amq.gen-*", "rpc.a"]), [true, false, true, true, false, false]);
    }

    #[test]
    fn a_pattern_that_is_invalid_or_covers_the_fleets_queues_is_refused() {
        let refused =
            |pattern: &str| queues(&["rpc.*", pattern]).validate("garenne").unwrap_err().to_string();
        let expected = "expected the name of a queue, or a prefix and \"*\" at its end";
        for pattern in ["", "a*b"] {
            assert_eq!(
                refused(pattern),
                format!("setting reply_queues = {pattern:?} is refused: {expected}")
            );
        }
        for pattern in ["*", "g*", "garenne*", "garenne.*", "garenne.dead", "garenne.tasks.*"] {
            let expected = "covers queues of the fleet (garenne.*), which publishers may not write to";
            assert_eq!(
                refused(pattern),
                format!("setting reply_queues = {pattern:?} is refused: {expected}")
            );
        }
        assert!(queues(&["garenne", "garenne-rpc.*", "garennes*", "amq.gen-*"]).validate("garenne").is_ok());
    }
}
