use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::*;
use crate::config::{Common, IgnoredSettings, LogFormat, SecretUrl, Size, print_config};
use crate::exit::{Exit, HasExit};
use crate::shutdown::Mode;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Breaker {
    errors: u8,
}

impl Default for Breaker {
    fn default() -> Self {
        Self { errors: 5 }
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Config {
    #[serde(flatten)]
    common: Common,
    shutdown_mode: Mode,
    #[serde(with = "humantime_serde")]
    shutdown_timeout: Duration,
    max_payload: Size,
    max_attempts: u32,
    enable_bench: bool,
    postgres_url: Option<SecretUrl>,
    breaker: Breaker,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            common: Common::default(),
            shutdown_mode: Mode::default(),
            shutdown_timeout: Duration::from_secs(25),
            max_payload: Size::mib(4),
            max_attempts: 5,
            enable_bench: false,
            postgres_url: None,
            breaker: Breaker::default(),
        }
    }
}

impl Settings for Config {
    fn validate(&self) -> Result<(), Invalid> {
        self.common.validate()
    }

    fn common_mut(&mut self) -> &mut Common {
        &mut self.common
    }
}

fn with_env(env: &[(&str, &str)]) -> Result<Config, ConfigError> {
    load_with(Sources::default(), env.iter().map(|(name, value)| (name.into(), value.into())))
}

fn refusal(name: &str, value: &str) -> String {
    with_env(&[(name, value)]).unwrap_err().to_string()
}

fn written(folder: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn with_file(path: &Path) -> Result<Config, ConfigError> {
    load_with(Sources { file: Some(path.to_owned()), ..Sources::default() }, [])
}

#[test]
fn without_sources_all_settings_have_their_defaults() {
    assert_eq!(with_env(&[]).unwrap(), Config::default());
    let common = Config::default().common;
    assert_eq!(common.amqp_url.expose(), "amqp://guest:guest@127.0.0.1:5672/%2f");
    assert_eq!(common.prefix, "garenne");
}

#[test]
fn flags_override_the_environment_which_overrides_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(&folder, "a.toml", "prefix = 'file'\nmax_attempts = 1\nenable_bench = true\n");
    let env = [("GARENNE_PREFIX", "env"), ("GARENNE_MAX_ATTEMPTS", "2")];
    let mut sources = Sources { file: Some(file), ..Sources::default() };
    sources.flags.insert("prefix".into(), "flag".into());
    let config: Config = load_with(sources, env.map(|(name, value)| (name.into(), value.into()))).unwrap();
    assert_eq!(config.common.prefix, "flag");
    assert_eq!(config.max_attempts, 2);
    assert!(config.enable_bench);
}

#[test]
fn the_environment_can_name_the_configuration_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(&folder, "a.toml", "log_format = 'json'\n[breaker]\nerrors = 9\n");
    let config = with_env(&[("GARENNE_CONFIG", file.to_str().unwrap())]).unwrap();
    assert_eq!(config.common.log_format, LogFormat::Json);
    assert_eq!(config.breaker.errors, 9);
    assert_eq!(
        refusal("GARENNE_CONFIG", "/nonexistent/a.toml"),
        "configuration file /nonexistent/a.toml (environment GARENNE_CONFIG) cannot be used: \
         No such file or directory (os error 2)"
    );
}

#[test]
fn a_toml_error_names_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(&folder, "a.toml", "prefix = 'a'\nmax_attempts = = 3\n");
    let error = with_file(&file).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "configuration file {} (flag --config) cannot be used: line 2: extra `=`, expected nothing",
            file.display()
        )
    );
    assert_eq!(error.exit(), Exit::Config);
}

#[test]
fn a_secret_can_be_read_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let secret = written(&folder, "url", "amqps://u:s3cret@broker/%2f\n");
    let name = secret.to_str().unwrap();
    let config = with_env(&[("GARENNE_AMQP_URL_FILE", name)]).unwrap();
    assert_eq!(config.common.amqp_url.expose(), "amqps://u:s3cret@broker/%2f");
    assert_eq!(config.common.amqp_url.file(), Some(secret.as_path()));
    let optional = written(&folder, "pg", "postgres://u:s3cret@db/x\n");
    let config = with_env(&[("GARENNE_POSTGRES_URL_FILE", optional.to_str().unwrap())]).unwrap();
    assert_eq!(config.postgres_url.unwrap().expose(), "postgres://u:s3cret@db/x");

    assert_eq!(
        with_env(&[("GARENNE_AMQP_URL_FILE", name), ("GARENNE_AMQP_URL", "amqp://a")])
            .unwrap_err()
            .to_string(),
        "the settings cannot be used together: GARENNE_AMQP_URL and GARENNE_AMQP_URL_FILE are both set, keep one"
    );
    assert_eq!(
        refusal("GARENNE_AMQP_URL_FILE", "/nonexistent/url"),
        "file /nonexistent/url (environment GARENNE_AMQP_URL_FILE) cannot be used: \
         No such file or directory (os error 2)"
    );
}

#[test]
fn a_secret_that_a_flag_overrides_has_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let secret = written(&folder, "url", "amqp://u:s3cret@broker/%2f\n");
    let mut sources = Sources::default();
    sources.flags.insert("amqp_url".into(), "amqp://u:other@broker/%2f".into());
    let env = [("GARENNE_AMQP_URL_FILE".into(), secret.into())];
    let config: Config = load_with(sources, env).unwrap();
    assert_eq!(config.common.amqp_url.expose(), "amqp://u:other@broker/%2f");
    assert_eq!(config.common.amqp_url.file(), None);
}

#[test]
fn a_setting_whose_name_ends_in_file_keeps_its_path() {
    let config = with_env(&[("GARENNE_ADMIN_TOKEN_FILE", "/run/token")]).unwrap();
    assert_eq!(config.common.admin_token_file, Some("/run/token".into()));
}

#[test]
fn invalid_values_name_setting_value_origin_and_what_is_allowed() {
    for (name, value, line) in [
        (
            "GARENNE_SHUTDOWN_MODE",
            "softly",
            "setting shutdown_mode = \"softly\" (environment GARENNE_SHUTDOWN_MODE) is refused: \
             expected light, soft, soft-timeout or hard",
        ),
        (
            "GARENNE_SHUTDOWN_TIMEOUT",
            "25",
            "setting shutdown_timeout = \"25\" (environment GARENNE_SHUTDOWN_TIMEOUT) is refused: \
             expected a duration such as 500ms, 25s or 2m",
        ),
        (
            "GARENNE_MAX_PAYLOAD",
            "4XiB",
            "setting max_payload = \"4XiB\" (environment GARENNE_MAX_PAYLOAD) is refused: \
             expected a size such as 4MiB, 500kB or 1048576",
        ),
        (
            "GARENNE_MAX_ATTEMPTS",
            "five",
            "setting max_attempts = \"five\" (environment GARENNE_MAX_ATTEMPTS) is refused: \
             expected a whole number from 0 to 4294967295",
        ),
        (
            "GARENNE_MAX_ATTEMPTS",
            "-1",
            "setting max_attempts = -1 (environment GARENNE_MAX_ATTEMPTS) is refused: \
             expected a whole number from 0 to 4294967295",
        ),
        (
            "GARENNE_ENABLE_BENCH",
            "maybe",
            "setting enable_bench = \"maybe\" (environment GARENNE_ENABLE_BENCH) is refused: \
             expected true or false",
        ),
        (
            "GARENNE_BREAKER__ERRORS",
            "256",
            "setting breaker.errors = 256 (environment GARENNE_BREAKER__ERRORS) is refused: \
             expected a whole number from 0 to 255",
        ),
        (
            "GARENNE_LOG_FORMAT",
            "xml",
            "setting log_format = \"xml\" (environment GARENNE_LOG_FORMAT) is refused: \
             expected human or json",
        ),
        (
            "GARENNE_ADMIN",
            "9464",
            "setting admin = \"9464\" (environment GARENNE_ADMIN) is refused: \
             expected an IP address and a port such as 127.0.0.1:9464 or [::1]:9464",
        ),
        (
            "GARENNE_PREFIX",
            "my fleet",
            "setting prefix = \"my fleet\" (environment GARENNE_PREFIX) is refused: \
             expected 1 to 64 of A-Z a-z 0-9 - _ . without the reserved prefix amq.",
        ),
    ] {
        assert_eq!(refusal(name, value), line);
    }
}

#[test]
fn the_error_for_an_invalid_url_masks_its_password() {
    assert_eq!(
        refusal("GARENNE_AMQP_URL", "http://user:s3cret@host/"),
        "setting amqp_url = \"http://user:***@host/\" (environment GARENNE_AMQP_URL) is refused: \
         expected amqp:// or amqps://"
    );
    assert_eq!(
        refusal("GARENNE_AMQP_URL", "amqp://user:s3cret@host:port/"),
        "setting amqp_url = \"amqp://***@host:port/\" (environment GARENNE_AMQP_URL) is refused: \
         expected a URL such as scheme://user:password@host:port/path \
         (invalid port number; in a password, # / ? @ : and % are percent-encoded)"
    );
}

#[test]
fn a_misspelled_setting_is_refused_with_the_nearest() {
    assert_eq!(
        refusal("GARENNE_AMQP_ULR", "amqp://host"),
        "setting amqp_ulr (environment GARENNE_AMQP_ULR) is unknown: did you mean amqp_url?"
    );
    assert_eq!(
        refusal("GARENNE_BREAKER__ERORS", "3"),
        "setting breaker.erors (environment GARENNE_BREAKER__ERORS) is unknown: did you mean errors?"
    );
    assert_eq!(
        refusal("GARENNE_POSTGRES_URI_FILE", "/run/postgres"),
        "setting postgres_uri_file (environment GARENNE_POSTGRES_URI_FILE) is unknown: \
         did you mean postgres_url_file?"
    );
    let folder = tempfile::tempdir().unwrap();
    let file = written(&folder, "a.toml", "listen = '0.0.0.0:8080'\nprefx = 'a'\n");
    assert_eq!(
        with_file(&file).unwrap_err().to_string(),
        format!("setting prefx (file {}) is unknown: did you mean prefix?", file.display())
    );
}

#[test]
fn an_unknown_flag_is_refused_with_the_known_names() {
    let mut sources = Sources::default();
    sources.flags.insert("colour".into(), "blue".into());
    assert_eq!(
        load_with::<Config>(sources, []).unwrap_err().to_string(),
        "setting colour (flag --colour) is unknown: expected one of admin, admin_tls_cert, admin_tls_key, \
         admin_token_file, allowed_hosts, amqp_tls, amqp_url, breaker, enable_bench, events, log_format, \
         management_url, max_attempts, max_payload, otlp, postgres_url, prefix, shutdown_mode, shutdown_timeout"
    );
}

/// Within a third of the letters, but more than a typo.
#[test]
fn a_name_that_three_edits_turn_into_a_known_one_is_no_typo() {
    let config = with_env(&[("GARENNE_POSTGRES_TLS__CA", "/ca.pem")]).unwrap();
    assert_eq!(config.common.ignored[0].names, ["postgres_tls"]);
}

#[test]
fn ignored_settings_are_listed_by_source() {
    let folder = tempfile::tempdir().unwrap();
    let file =
        written(&folder, "a.toml", "tokens = '/t'\nprefix = 'a'\nlisten = '0.0.0.0:8080'\n[gateway]\n");
    let env = [
        ("GARENNE_CONFIG", file.to_str().unwrap()),
        ("GARENNE_SCALE__MIN", "2"),
        ("GARENNE_SCALE__MAX", "4"),
    ];
    let config = with_env(&env).unwrap();
    assert_eq!(config.common.prefix, "a");
    let ignored = |source: &str, names: &[&str]| IgnoredSettings {
        source: source.to_owned(),
        names: names.iter().map(|&name| name.to_owned()).collect(),
    };
    let from_file = ignored(&format!("file {}", file.display()), &["gateway", "listen", "tokens"]);
    assert_eq!(config.common.ignored, [from_file, ignored("environment", &["scale"])]);
}

#[test]
fn reserved_variables_are_ignored() {
    let env = [
        ("GARENNE_LOG", "debug"),
        ("GARENNE_TEST_MODE", "local"),
        ("GARENNE_PREFIX", ""),
        ("GARENNE_PORT", "tcp://10.0.0.1:80"),
        ("GARENNE_GATEWAY_SERVICE_HOST", "10.0.0.1"),
        ("GARENNE_GATEWAY_PORT_80_TCP_ADDR", "10.0.0.1"),
        ("OTHER_PREFIX", "b"),
    ];
    assert_eq!(with_env(&env).unwrap(), Config::default());
}

#[test]
fn standard_variables_are_settings_that_our_own_override() {
    let standard = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://theirs:4318"),
        ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
    ];
    let otlp = with_env(&standard).unwrap().common.otlp;
    assert_eq!(otlp.traces_url().as_deref(), Some("http://theirs:4318/v1/traces"));
    assert_eq!((otlp.ratio, otlp.timeout), (0.25, Duration::from_millis(2500)));
    let ours = ("GARENNE_OTLP__ENDPOINT", "http://ours:4318");
    let otlp = with_env(&[&standard[..], &[ours]].concat()).unwrap().common.otlp;
    assert_eq!((otlp.endpoint.unwrap().masked(), otlp.ratio), ("http://ours:4318/", 0.25));
    assert_eq!(
        refusal("OTEL_TRACES_SAMPLER_ARG", "2"),
        "setting otlp.ratio = 2 (environment OTEL_TRACES_SAMPLER_ARG) is refused: expected a fraction from 0 to 1, \
         such as 0.05"
    );
    assert_eq!(
        refusal("OTEL_TRACES_SAMPLER_ARG", "some"),
        "setting otlp.ratio = \"some\" (environment OTEL_TRACES_SAMPLER_ARG) is refused: expected a number"
    );
    assert_eq!(
        refusal("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        "setting otlp.protocol = \"grpc\" (environment OTEL_EXPORTER_OTLP_PROTOCOL) is refused: \
         expected http/protobuf"
    );
    assert_eq!(
        refusal("OTEL_TRACES_SAMPLER", "jaeger_remote"),
        "setting otlp.sampler = \"jaeger_remote\" (environment OTEL_TRACES_SAMPLER) is refused: expected one of \
         parentbased_traceidratio, parentbased_always_on, parentbased_always_off, traceidratio, always_on, always_off"
    );
}

#[test]
fn printed_settings_mask_secrets_and_can_be_loaded() {
    let config = with_env(&[
        ("GARENNE_AMQP_URL", "amqp://user:s3cret@host/vhost"),
        ("GARENNE_PREFIX", "test"),
        ("GARENNE_SHUTDOWN_TIMEOUT", "90s"),
    ])
    .unwrap();
    let printed = print_config(&config);
    assert_eq!(
        printed,
        "# admin is not set\n# admin_tls_cert is not set\n# admin_tls_key is not set\n\
         # admin_token_file is not set\n# management_url is not set\n# postgres_url is not set\n\
         allowed_hosts = []\n\
         amqp_url = \"amqp://user:***@host/vhost\"\nenable_bench = false\nlog_format = \"human\"\n\
         max_attempts = 5\nmax_payload = \"4MiB\"\nprefix = \"test\"\nshutdown_mode = \"soft-timeout\"\n\
         shutdown_timeout = \"1m 30s\"\n\n[amqp_tls]\n\n[breaker]\nerrors = 5\n\n[events]\nheartbeat = \"2s\"\n\n\
         [otlp]\nprotocol = \"http/protobuf\"\nratio = 1.0\n\
         sampler = \"parentbased_traceidratio\"\ntimeout = \"10s\"\n"
    );
    let folder = tempfile::tempdir().unwrap();
    let again = with_file(&written(&folder, "again.toml", &printed)).unwrap();
    assert_eq!(again.shutdown_timeout, Duration::from_secs(90));
    assert_eq!(again.common.prefix, "test");
}
