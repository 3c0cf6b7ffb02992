//! The rights on the broker that programs need, and what a refusal of the broker says of one that is missing.

use std::fmt;

use strum::Display;

/// A right that a user of the broker lacks, as the broker's refusal names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MissingRight {
    /// The user.
    pub user: String,
    /// The virtual host.
    pub vhost: String,
    /// `configure`, `write` or `read`.
    pub right: String,
    /// What it is missing on, such as `exchange "amq.default"`.
    pub resource: String,
    /// The exchange, if the right on it is limited to some routing keys.
    topics_of: Option<String>,
}

impl MissingRight {
    /// Parses a broker's refusal, such as `ACCESS_REFUSED - write access to exchange 'amq.default' in vhost '/' refused
    /// for user 'w'`, with any text before and after it.
    pub fn of(refusal: &str) -> Option<Self> {
        // The text before it may have the words too.
        let (before, rest) = refusal.rsplit_once(" access to ")?;
        let right = ["configure", "write", "read"].into_iter().find(|right| before.ends_with(right))?;
        let (resource, rest) = rest.split_once(" in vhost '")?;
        // Heartbeats repeat refusals, and operators paste commands: no part contains a quotation mark.
        let (vhost, rest) = rest.split_once('\'')?;
        let (user, _) = rest.strip_prefix(" refused for user '")?.split_once('\'')?;
        let topics_of = resource.split_once(" in exchange '").map(|(_, name)| name.replace('\'', ""));
        let resource = resource.replace('\'', "\"");
        Some(Self { user: user.into(), vhost: vhost.into(), right: right.into(), resource, topics_of })
    }

    /// The command that gives the user all rights of its program.
    pub fn command(&self, of: BrokerUser, prefix: &str) -> String {
        let Permissions { configure, write, read } = of.permissions(prefix);
        let Self { user, vhost, .. } = self;
        match &self.topics_of {
            Some(exchange) => {
                let [write, read] = of.topics();
                format!(
                    "rabbitmqctl set_topic_permissions -p '{vhost}' '{user}' '{exchange}' '{write}' '{read}'"
                )
            }
            None => {
                format!("rabbitmqctl set_permissions -p '{vhost}' '{user}' '{configure}' '{write}' '{read}'")
            }
        }
    }
}

impl fmt::Display for MissingRight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, vhost, right, resource, .. } = self;
        write!(f, "user {user:?} lacks the right {right} on {resource} in virtual host {vhost:?}")
    }
}

/// A user of the broker, each for one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Display)]
#[strum(serialize_all = "lowercase")]
pub enum BrokerUser {
    /// A gateway.
    Gateway,
    /// A bridge.
    Bridge,
    /// A worker.
    Worker,
    /// The console.
    Console,
    /// A console that writes nothing.
    Viewer,
}

/// A user's permissions on a virtual host, each a regular expression for names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// What the user may declare and delete.
    pub configure: String,
    /// What the user may publish to and bind.
    pub write: String,
    /// What the user may consume and bind to.
    pub read: String,
}

impl BrokerUser {
    /// The permissions that the program needs in a fleet with this prefix.
    pub fn permissions(self, prefix: &str) -> Permissions {
        let (configure, write, read) = match self {
            Self::Gateway => ("^$", r"^P\.(tasks|events)$", "^$"),
            Self::Bridge => ("^$", r"^P\.(tasks|dead|dead\.waiting|events)$", "^$"),
            Self::Worker => (
                r"^P\.worker\..*",
                r"^(amq\.default|P\.(dead|events|results|retry\..*|shards\..*|unroutable|worker\..*))$",
                r"^P\.(tasks\..*|quarantine|directives|lifecycle|control|worker\..*)$",
            ),
            Self::Console => (
                r"^P\.console\..*",
                r"^(amq\.default|P\.(control|dead|directives|events|lifecycle|quarantine|results|retry\..*|shards\..*|tasks|tasks\..*|unroutable|console\..*))$",
                r"^P\.(audit|dead|dead\.waiting|unroutable|lifecycle|events|console\..*)$",
            ),
            Self::Viewer => (r"^P\.console\..*", r"^P\.console\..*", r"^P\.(lifecycle|events|console\..*)$"),
        };
        let prefix = prefix.replace('.', r"\.");
        let named = |pattern: &str| pattern.replace('P', &prefix);
        Permissions { configure: named(configure), write: named(write), read: named(read) }
    }

    /// The routing keys of the exchange of events that the program may write and read.
    fn topics(self) -> [&'static str; 2] {
        match self {
            Self::Gateway => [r"^beat\.gateway\.", "^$"],
            Self::Bridge => [r"^beat\.bridge\.", "^$"],
            Self::Worker => [r"^(beat\.worker|life)\.", "^$"],
            Self::Console => [r"^audit\.", r"^beat\."],
            Self::Viewer => ["^$", r"^beat\."],
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_refusal_of_the_broker_is_parsed() {
        let text = "the broker denied access to \"x\": ACCESS_REFUSED - write access to exchange 'amq.default' in vhost '/' refused for user 'w' (403)";
        let right = MissingRight::of(text).unwrap();
        assert_eq!(
            right.to_string(),
            r#"user "w" lacks the right write on exchange "amq.default" in virtual host "/""#
        );
        let command = right.command(BrokerUser::Gateway, "my.fleet");
        assert_eq!(
            command,
            r"rabbitmqctl set_permissions -p '/' 'w' '^$' '^my\.fleet\.(tasks|events)$' '^$'"
        );
        let topic = "ACCESS_REFUSED - write access to topic 'audit.x' in exchange 'garenne.events' in vhost 'v' refused for user 'c'";
        let right = MissingRight::of(topic).unwrap();
        assert_eq!(right.resource, r#"topic "audit.x" in exchange "garenne.events""#);
        assert_eq!(
            right.command(BrokerUser::Console, "garenne"),
            r"rabbitmqctl set_topic_permissions -p 'v' 'c' 'garenne.events' '^audit\.' '^beat\.'"
        );
        for other in
            ["", "ACCESS_REFUSED - Login was refused", "write access to x", "x access to y in vhost 'v'"]
        {
            assert_eq!(MissingRight::of(other), None, "{other}");
        }
    }

    #[test]
    fn the_rights_are_those_of_the_example_definitions() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/rabbitmq/definitions.json");
        let definitions: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        let of = |list: &str, user: &str| {
            let all = definitions[list].as_array().unwrap();
            all.iter().find(|it| it["user"] == format!("garenne-{user}")).unwrap().clone()
        };
        for (program, user) in [
            (BrokerUser::Gateway, "gateway"),
            (BrokerUser::Bridge, "bridge"),
            (BrokerUser::Worker, "worker"),
            (BrokerUser::Console, "console"),
            (BrokerUser::Viewer, "viewer"),
        ] {
            let (granted, topics) = (of("permissions", user), of("topic_permissions", user));
            let Permissions { configure, write, read } = program.permissions("garenne");
            assert_eq!(
                [&granted["configure"], &granted["write"], &granted["read"]],
                [&configure, &write, &read],
                "{user}"
            );
            let [write, read] = program.topics();
            assert_eq!([&topics["write"], &topics["read"]], [write, read], "{user}");
        }
    }
}
