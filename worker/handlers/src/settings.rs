//! The table `handlers` of the settings: programs and services that run tasks.
//!
//! ```toml
//! [handlers."image.resize"]
//! command = "python3 resize.py"
//! processes = 4
//! memory = "512MiB"
//! ```

use std::{
    collections::BTreeMap,
    env, fmt, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use garenne_common::{
    config::{Invalid, Size, list},
    webhook::SigningSecret,
};
use garenne_protocol::task::Kind;
use hyper::{
    Uri,
    header::{HeaderName, HeaderValue},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::guardian::Order;

/// How a handler gets its tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// From processes that stay and ask for tasks.
    Stdio,
    /// From a process for each task.
    Exec,
    /// By requests to a service.
    Http,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stdio => "stdio",
            Self::Exec => "exec",
            Self::Http => "http",
        })
    }
}

/// A program and its arguments: a list, or text that is divided as a shell does it. No shell runs it.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
#[serde(transparent)]
pub struct CommandLine(pub Vec<String>);

impl<'de> Deserialize<'de> for CommandLine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a command as text or as a list of texts")]
        enum Given {
            Text(String),
            List(Vec<String>),
        }
        match Given::deserialize(deserializer)? {
            Given::List(words) => Ok(Self(words)),
            Given::Text(text) => {
                let words = shlex::split(&text);
                words.map(Self).ok_or_else(|| {
                    D::Error::custom(format!("the command {text:?} has a quote without its end"))
                })
            }
        }
    }
}

/// A handler in another language. The name of the table is the kind of its tasks, unless `kinds` says otherwise.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HandlerSettings {
    /// The kinds of its tasks, or topic patterns of them such as `image.*`. Empty, it is the name of the table.
    #[serde(with = "list")]
    pub kinds: Vec<String>,
    /// The program; required, unless the handler is a service.
    pub command: CommandLine,
    /// The URL of the service; required for the transport `http`.
    pub url: Option<String>,
    /// How it gets its tasks. Unset, `http` with a URL and `stdio` without.
    pub transport: Option<Transport>,
    /// The URL that answers with 2xx while the service can run tasks. Unset, it can while it accepts connections.
    pub health: Option<String>,
    /// The key that requests to the service are signed with.
    pub secret: Option<SigningSecret>,
    /// Headers of requests to the service. Their values are masked in output.
    #[serde(serialize_with = "masked")]
    pub headers: BTreeMap<String, String>,
    /// Number of processes that stay, 1 to 1,000. Unset, as many as the lane runs tasks at once. For the transports `exec` and
    /// `http` it only says how many tasks a lane runs at once that leaves `concurrency` at its default.
    pub processes: Option<u16>,
    /// How long a process may take to load.
    #[serde(with = "humantime_serde")]
    pub start_timeout: Duration,
    /// How long a task may run.
    #[serde(with = "humantime_serde")]
    pub deadline: Duration,
    /// The most memory of a process and its descendants together. Unset, there is no limit.
    pub memory: Option<Size>,
    /// After how many tasks a process is replaced; 0 for never.
    pub recycle_tasks: u64,
    /// After what time a process is replaced; 0 for never.
    #[serde(with = "humantime_serde")]
    pub recycle_time: Duration,
    /// Environment variables besides those of the worker.
    pub environment: BTreeMap<String, String>,
    /// Working directory. Unset, that of the worker.
    pub directory: Option<PathBuf>,
    /// The number of the user that the processes run as, or `user:group`. Only a worker that runs as root can change it.
    pub user: Option<String>,
    /// Maximum number of attempts of a task. Unset, the worker's `max_attempts`.
    pub max_attempts: Option<u32>,
    /// The wait before the second attempt. It is three times as long before each next one, up to an hour.
    #[serde(with = "humantime_serde")]
    pub backoff: Duration,
}

impl Default for HandlerSettings {
    fn default() -> Self {
        Self {
            kinds: Vec::new(),
            command: CommandLine::default(),
            url: None,
            transport: None,
            health: None,
            secret: None,
            headers: BTreeMap::new(),
            processes: None,
            start_timeout: Duration::from_secs(30),
            deadline: Duration::from_secs(600),
            memory: None,
            recycle_tasks: 0,
            recycle_time: Duration::ZERO,
            environment: BTreeMap::new(),
            directory: None,
            user: None,
            max_attempts: None,
            backoff: Duration::from_secs(1),
        }
    }
}

fn masked<S: Serializer>(headers: &BTreeMap<String, String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(headers.keys().map(|name| (name, "***")))
}

const MOST_PROCESSES: u16 = 1000;
/// The least limit of a process's memory.
const LEAST_MEMORY: Size = Size(1 << 20);
/// The headers of a request that the worker sets, besides those that begin with `garenne-` or `webhook-`.
const OWN_HEADERS: [&str; 7] = [
    "connection",
    "content-length",
    "content-type",
    "host",
    "traceparent",
    "tracestate",
    "transfer-encoding",
];

impl HandlerSettings {
    /// The kinds of a handler with this name.
    pub fn kinds<'a>(&'a self, name: &'a str) -> Vec<&'a str> {
        if self.kinds.is_empty() { vec![name] } else { self.kinds.iter().map(String::as_str).collect() }
    }

    /// Returns the first invalid field of the handler with this name.
    pub fn validate(&self, name: &str) -> Result<(), Invalid> {
        let setting = |field: &str| format!("handlers.{name}.{field}");
        for kind in self.kinds(name) {
            let path = if self.kinds.is_empty() { format!("handlers.{name}") } else { setting("kinds") };
            let refused = |error: garenne_protocol::task::KindError| {
                Invalid::new(path, format_args!("{kind:?}"), error.to_string())
            };
            Kind::parse_pattern(kind).map_err(refused)?;
        }
        let (transport, is_service) = (self.transport(), self.transport() == Transport::Http);
        let problem = match is_service {
            true => "the transport http has none",
            false => "expected a program with its arguments, such as \"python3 resize.py\"",
        };
        let command = format!("{:?}", self.command.0.join(" "));
        Invalid::unless(self.command.0.is_empty() == is_service, setting("command"), command, problem)?;
        let problem = match is_service {
            true => "expected the URL of the service, such as http://127.0.0.1:8000/tasks".to_owned(),
            false => format!("the transport {transport} has none"),
        };
        let url = format!("{:?}", self.url.as_deref().unwrap_or_default());
        Invalid::unless(self.url.is_some() == is_service, setting("url"), url, problem)?;
        let has_nul = |texts: &[&String]| texts.iter().any(|text| text.contains('\0'));
        let variables =
            self.environment.iter().map(|(name, value)| ("environment", name, has_nul(&[name, value])));
        let words = self.command.0.iter().map(|word| ("command", word, has_nul(&[word])));
        for (field, text, has_nul) in words.chain(variables) {
            let problem = "no program can be started with a NUL byte";
            Invalid::unless(!has_nul, setting(field), format_args!("{text:?}"), problem)?;
        }
        for name in self.environment.keys() {
            let problem = "expected the name of a variable, which is not empty and has no =";
            let is_valid = !name.is_empty() && !name.contains('=');
            Invalid::unless(is_valid, setting("environment"), format_args!("{name:?}"), problem)?;
        }
        self.check_transport(setting)?;
        let memory = self.memory.unwrap_or(LEAST_MEMORY);
        let problem = format!("expected {LEAST_MEMORY} or more, such as 512MiB");
        Invalid::unless(memory.0 >= LEAST_MEMORY.0, setting("memory"), memory, problem)?;
        let processes = self.processes.unwrap_or(1);
        let problem = format!("expected 1 to {MOST_PROCESSES}");
        Invalid::unless((1..=MOST_PROCESSES).contains(&processes), setting("processes"), processes, problem)?;
        for (field, time) in [("start_timeout", self.start_timeout), ("deadline", self.deadline)] {
            Invalid::unless(!time.is_zero(), setting(field), "0s", "expected more than 0s")?;
        }
        Invalid::unless(self.max_attempts != Some(0), setting("max_attempts"), 0, "expected 1 or more")?;
        let problem = "expected the number of a user, or of a user and a group, such as 1000 or 1000:1000";
        let user = self.user.as_deref();
        let is_valid = user.is_none() || self.user_and_group().is_some();
        Invalid::unless(is_valid, setting("user"), format_args!("{:?}", user.unwrap_or_default()), problem)?;
        for (field, url) in [("url", &self.url), ("health", &self.health)] {
            let Some(url) = url else { continue };
            let problem = "expected http:// or https://, a host, and no user or password";
            // It may have a password.
            let shown = url.split_once('@').map_or(url.as_str(), |_| "***");
            Invalid::unless(is_url(url), setting(field), format_args!("{shown:?}"), problem)?;
        }
        for (name, value) in &self.headers {
            let is_valid = HeaderName::try_from(name).is_ok() && HeaderValue::try_from(value).is_ok();
            let problem = "expected the name of a header with a value of visible ASCII";
            Invalid::unless(is_valid, setting("headers"), format_args!("{name:?}"), problem)?;
            let lower = name.to_lowercase();
            let is_own = OWN_HEADERS.contains(&&*lower)
                || ["garenne-", "webhook-"].iter().any(|prefix| lower.starts_with(prefix));
            let problem = "the worker sets this header itself";
            Invalid::unless(!is_own, setting("headers"), format_args!("{name:?}"), problem)?;
        }
        if is_service { Ok(()) } else { self.check_program(setting) }
    }

    /// Refuses the settings that have no effect with the handler's transport.
    fn check_transport(&self, setting: impl Fn(&str) -> String) -> Result<(), Invalid> {
        use Transport::{Exec, Http, Stdio};
        let default = Self::default();
        let transport = self.transport();
        let programs = &[Stdio, Exec][..];
        for (field, is_set, transports) in [
            ("start_timeout", self.start_timeout != default.start_timeout, &[Stdio][..]),
            ("recycle_tasks", self.recycle_tasks != default.recycle_tasks, &[Stdio]),
            ("recycle_time", self.recycle_time != default.recycle_time, &[Stdio]),
            ("memory", self.memory.is_some(), programs),
            ("environment", !self.environment.is_empty(), programs),
            ("directory", self.directory.is_some(), programs),
            ("user", self.user.is_some(), programs),
            ("health", self.health.is_some(), &[Http]),
            ("headers", !self.headers.is_empty(), &[Http]),
            ("secret", self.secret.is_some(), &[Http]),
        ] {
            let problem = format!("the transport {transport} does not use it");
            Invalid::unless(!is_set || transports.contains(&transport), setting(field), "…", problem)?;
        }
        Ok(())
    }

    /// How it gets its tasks.
    pub(crate) fn transport(&self) -> Transport {
        self.transport.unwrap_or(if self.url.is_some() { Transport::Http } else { Transport::Stdio })
    }

    /// The numbers of the user and the group.
    pub(crate) fn user_and_group(&self) -> Option<(u32, u32)> {
        let user = self.user.as_deref()?;
        let (user, group) = user.split_once(':').unwrap_or((user, user));
        Some((user.parse().ok()?, group.parse().ok()?))
    }

    /// What the guardian of a process starts. The process has the environment of the worker without its settings, which contain
    /// secrets, the handler's own variables and these.
    pub(crate) fn order(
        &self,
        variables: impl IntoIterator<Item = (String, String)>,
        descriptors: Vec<i32>,
    ) -> Order {
        let inherited = env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| !name.starts_with("GARENNE_"));
        let own = self.environment.clone();
        Order {
            command: self.command.0.clone(),
            environment: inherited.chain(own).chain(variables).collect(),
            directory: self.directory.clone(),
            user: self.user_and_group(),
            memory: self.memory.map(|limit| limit.0),
            descriptors,
        }
    }

    /// Checks that the working directory and the program exist, and that the program may be executed.
    pub(crate) fn check_program(&self, setting: impl Fn(&str) -> String) -> Result<(), Invalid> {
        if let Some(directory) = &self.directory {
            let problem = "no directory has this name";
            Invalid::unless(
                directory.is_dir(),
                setting("directory"),
                format_args!("{directory:?}"),
                problem,
            )?;
        }
        let program = &self.command.0[0];
        let is_executable = |path: &Path| {
            fs::metadata(path).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
        };
        let found = if program.contains('/') {
            is_executable(&self.directory.as_deref().unwrap_or(Path::new("")).join(program))
        } else {
            let path =
                self.environment.get("PATH").cloned().or_else(|| env::var("PATH").ok()).unwrap_or_default();
            env::split_paths(&path).any(|folder| is_executable(&folder.join(program)))
        };
        let problem = match program.contains('/') {
            true => "no executable file has this name",
            false => "no executable file in PATH has this name",
        };
        Invalid::unless(found, setting("command"), format_args!("{program:?}"), problem)
    }
}

fn is_url(text: &str) -> bool {
    let Ok(url) = Uri::try_from(text) else { return false };
    let has_user = url.authority().is_some_and(|authority| authority.as_str().contains('@'));
    matches!(url.scheme_str(), Some("http" | "https"))
        && url.host().is_some_and(|host| !host.is_empty())
        && !has_user
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(toml: &str) -> HandlerSettings {
        serde_json::from_str(toml).unwrap()
    }

    #[test]
    fn a_command_is_divided_as_a_shell_does_it() {
        let settings = parse(r#"{"command": "sh -c 'exit 3'"}"#);
        assert_eq!(settings.command.0, ["sh", "-c", "exit 3"]);
        assert_eq!(parse(r#"{"command": ["sh", "-c", "a b"]}"#).command.0, ["sh", "-c", "a b"]);
        let error =
            serde_json::from_str::<HandlerSettings>(r#"{"command": "sh 'x"}"#).unwrap_err().to_string();
        assert!(error.starts_with("the command \"sh 'x\" has a quote without its end"), "{error}");
    }

    #[test]
    fn an_invalid_setting_is_named() {
        let refused = |text: &str| parse(text).validate("image.resize").unwrap_err().to_string();
        let settings = [
            (
                r"{}",
                r#"setting handlers.image.resize.command = "" is refused: expected a program with its arguments, such as "python3 resize.py""#,
            ),
            (
                r#"{"command": "sh", "processes": 0}"#,
                r#"setting handlers.image.resize.processes = 0 is refused: expected 1 to 1000"#,
            ),
            (
                r#"{"command": "sh", "deadline": "0s"}"#,
                r#"setting handlers.image.resize.deadline = 0s is refused: expected more than 0s"#,
            ),
            (
                r#"{"command": "no-such-program x"}"#,
                r#"setting handlers.image.resize.command = "no-such-program" is refused: no executable file in PATH has this name"#,
            ),
            (
                r#"{"command": "./no-such-program"}"#,
                r#"setting handlers.image.resize.command = "./no-such-program" is refused: no executable file has this name"#,
            ),
            (
                r#"{"command": "sh", "environment": {"A": "b\u0000"}}"#,
                r#"setting handlers.image.resize.environment = "A" is refused: no program can be started with a NUL byte"#,
            ),
            (
                r#"{"command": "./run.sh", "directory": "/no/such"}"#,
                r#"setting handlers.image.resize.directory = "/no/such" is refused: no directory has this name"#,
            ),
            (
                r#"{"command": "sh", "environment": {"A=B": "c"}}"#,
                r#"setting handlers.image.resize.environment = "A=B" is refused: expected the name of a variable, which is not empty and has no ="#,
            ),
            (
                r#"{"command": "sh", "memory": 5}"#,
                r#"setting handlers.image.resize.memory = 5B is refused: expected 1MiB or more, such as 512MiB"#,
            ),
            (
                r#"{"command": "sh", "headers": {"authorization": "secret"}}"#,
                r#"setting handlers.image.resize.headers = … is refused: the transport stdio does not use it"#,
            ),
            (
                r#"{"command": "sh", "transport": "exec", "recycle_tasks": 5}"#,
                r#"setting handlers.image.resize.recycle_tasks = … is refused: the transport exec does not use it"#,
            ),
            (
                r#"{"url": "http://crm.internal/tasks", "directory": "/"}"#,
                r#"setting handlers.image.resize.directory = … is refused: the transport http does not use it"#,
            ),
            (
                r#"{"url": "http://user:secret@crm.internal/tasks"}"#,
                r#"setting handlers.image.resize.url = "***" is refused: expected http:// or https://, a host, and no user or password"#,
            ),
            (
                r#"{"url": "http://crm.internal/tasks", "headers": {"Content-Length": "3"}}"#,
                r#"setting handlers.image.resize.headers = "Content-Length" is refused: the worker sets this header itself"#,
            ),
            (
                r#"{"command": "sh", "user": "nobody"}"#,
                r#"setting handlers.image.resize.user = "nobody" is refused: expected the number of a user, or of a user and a group, such as 1000 or 1000:1000"#,
            ),
        ];
        for (text, problem) in settings {
            assert_eq!(refused(text), problem);
        }
        parse(r#"{"command": "sh", "kinds": "a.b,c.*,d.#"}"#).validate("any name").unwrap();
        let error =
            parse(r#"{"command": "sh", "kinds": ["a b"]}"#).validate("images").unwrap_err().to_string();
        assert!(error.contains(r#"handlers.images.kinds"#), "{error}");
    }
}
