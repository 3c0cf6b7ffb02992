//! Logging to stderr; stdout is for results only.

mod printable;

use std::io::{self, IsTerminal};

use ::tracing::Subscriber;
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    layer::SubscriberExt,
};

use self::printable::{PrintableLine, printable_fields};
use crate::config::{Common, ConfigError, IgnoredSettings, Invalid, LogFormat};

/// Variables for the filter; the first that is set wins.
const FILTERS: [&str; 2] = ["GARENNE_LOG", "RUST_LOG"];

/// Info and above from our own crates, warnings and above from others. Directives match a target's prefix.
pub const DEFAULT_FILTER: &str = "warn,garenne=info,lapin=off";

/// Starts logging to stderr in `log_format`, filtered by `GARENNE_LOG`, else `RUST_LOG`, else `warn,garenne=info`, and
/// logs the ignored settings. Called once, from `main`; a second call changes nothing.
///
/// # Errors
/// The filter cannot be parsed.
pub fn init(common: &Common) -> Result<(), ConfigError> {
    init_filtered(common, DEFAULT_FILTER)
}

/// As [`init`], with another filter than `warn,garenne=info` if neither variable is set.
///
/// # Errors
/// The filter of a variable cannot be parsed.
pub fn init_filtered(common: &Common, default_filter: &str) -> Result<(), ConfigError> {
    let set = FILTERS.into_iter().find_map(|name| {
        let value = std::env::var(name).ok().filter(|value| !value.trim().is_empty())?;
        Some((name, value))
    });
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    let filter = match &set {
        Some((name, value)) => filter(name, value)?,
        None => filter("the default filter", default_filter)?,
    };
    let subscriber = subscriber(common.log_format, filter, colours, io::stderr);
    // Fails if the host program has set a subscriber, which then stays.
    if ::tracing::subscriber::set_global_default(subscriber).is_ok() {
        common.ignored.iter().for_each(IgnoredSettings::warn);
    }
    Ok(())
}

fn filter(name: &str, value: &str) -> Result<Targets, ConfigError> {
    // An empty directive would be one for errors of all targets.
    let directives = value.split(',').map(str::trim).filter(|directive| !directive.is_empty());
    directives.collect::<Vec<_>>().join(",").parse().map_err(|_| {
        let problem = "expected directives such as info or garenne=debug,lapin=warn, \
                       with levels off, error, warn, info, debug or trace";
        Invalid::new("log filter", format_args!("{value:?}"), problem).given_by(format!("environment {name}"))
    })
}

fn subscriber<W: io::Write + 'static>(
    format: LogFormat,
    filter: Targets,
    colours: bool,
    writer: impl Fn() -> W + Send + Sync + 'static,
) -> Box<dyn Subscriber + Send + Sync> {
    let builder = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_ansi(colours);
    // With a closed stderr, the default is to report each failed write to stderr, which panics.
    let builder = builder.log_internal_errors(false);
    match format {
        LogFormat::Human => {
            let human = builder.fmt_fields(printable_fields()).with_writer(writer);
            Box::new(human.finish().with(filter))
        }
        LogFormat::Json => {
            let json = builder.json().flatten_event(true).with_current_span(true);
            Box::new(json.with_writer(move || PrintableLine(writer())).finish().with(filter))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Lines {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(format: LogFormat, filter: &str, colours: bool, log: impl FnOnce()) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = subscriber(format, filter.parse().unwrap(), colours, move || writer.clone());
        ::tracing::subscriber::with_default(subscriber, log);
        lines.text()
    }

    fn logged(format: LogFormat, filter: &str) -> String {
        written(format, filter, false, || {
            ::tracing::info!(target: "garenne_worker::consumer", lane = "fast", "ours");
            ::tracing::debug!(target: "garenne_worker::consumer", "ours in detail");
            ::tracing::info!(target: "hyper::proto", "theirs");
            ::tracing::warn!(target: "hyper::proto", "theirs to worry about");
        })
    }

    const FOREIGN: &str = "\x1b]0;owned\x07\x1b[2J\u{9b}1m\u{202e}\u{2028}\n";

    /// Logs untrusted text in every part of an event.
    fn log_foreign() {
        let error = io::Error::other(FOREIGN);
        let span = ::tracing::info_span!("request", from = FOREIGN, shown = %FOREIGN);
        let _entered = span.enter();
        ::tracing::warn!(
            target: "garenne_worker",
            id = FOREIGN, shown = %FOREIGN, debug = ?FOREIGN, error = &error as &dyn std::error::Error,
            "told by {FOREIGN}"
        );
    }

    #[test]
    fn hidden_characters_in_messages_and_fields_are_escaped() {
        let shown = r"\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}1m\u{202e}\u{2028}\n";
        let text = written(LogFormat::Human, DEFAULT_FILTER, false, log_foreign);
        assert_eq!(text.lines().count(), 1, "{text:?}");
        assert!(!text.trim_end_matches('\n').contains(crate::text::is_hidden), "{text:?}");
        assert!(text.contains(&format!("told by {shown} id=\"{shown}\" shown={shown} ")), "{text:?}");
        assert!(text.contains(&format!(" error={shown}")), "{text:?}");
        assert!(text.contains(&format!("request{{from=\"{shown}\" shown={shown}}}")), "{text:?}");

        let coloured = written(LogFormat::Human, DEFAULT_FILTER, true, log_foreign);
        let plain = ["[2m", "[33m", "[1m", "[3m", "[0m"]
            .iter()
            .fold(coloured.clone(), |text, style| text.replace(&format!("\x1b{style}"), ""));
        assert_eq!(plain.split_once(' ').map(|it| it.1), text.split_once(' ').map(|it| it.1), "{coloured:?}");
    }

    #[test]
    fn json_lines_have_no_hidden_characters_and_the_exact_text() {
        let text = written(LogFormat::Json, DEFAULT_FILTER, false, log_foreign);
        assert!(!text.trim_end_matches('\n').contains(crate::text::is_hidden), "{text:?}");
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((line["id"].as_str(), line["shown"].as_str()), (Some(FOREIGN), Some(FOREIGN)));
    }

    #[test]
    fn by_default_we_log_info_and_others_only_warnings() {
        let text = logged(LogFormat::Human, DEFAULT_FILTER);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].ends_with(" INFO garenne_worker::consumer: ours lane=\"fast\""), "{text}");
        assert!(lines[1].ends_with(" WARN hyper::proto: theirs to worry about"), "{text}");
    }

    #[test]
    fn json_is_one_object_a_line() {
        let text = logged(LogFormat::Json, DEFAULT_FILTER);
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["message"], "ours");
        assert_eq!(lines[0]["lane"], "fast");
        assert_eq!(lines[0]["level"], "INFO");
        assert!(lines[0]["timestamp"].is_string());
    }

    #[test]
    fn spaces_and_empty_directives_of_a_filter_are_ignored() {
        assert_eq!(
            filter("GARENNE_LOG", " info, garenne=debug,").unwrap(),
            "info,garenne=debug".parse().unwrap()
        );
    }

    #[test]
    fn a_bad_filter_names_its_variable() {
        let error = filter("GARENNE_LOG", "garenne=loud").unwrap_err().to_string();
        assert_eq!(
            error,
            "setting log filter = \"garenne=loud\" (environment GARENNE_LOG) is refused: \
             expected directives such as info or garenne=debug,lapin=warn, \
             with levels off, error, warn, info, debug or trace"
        );
    }
}
