//! `docs/commands.md`: every program, command and flag.
//!
//! The page is made of the programs' command lines. Most flags set a setting, whose variable the page names; the tables of settings
//! must have it.

use std::{collections::BTreeSet, path::Path};

use clap::{Arg, ArgAction, Command};

use super::{commands::programs, example_settings};

/// Where the page is kept, relative to the root of the repository.
pub const PATH: &str = "docs/commands.md";

/// The commands whose flags are settings, and where in the settings a flag's name is looked up, first match.
const SETTERS: [(&str, &[&str]); 4] = [
    ("garenne-worker", &[""]),
    ("garenne-producer serve", &[""]),
    ("garenne-producer mqtt", &["mqtt.", "mqtt.tls.", ""]),
    ("garenne dashboard", &["dashboard.", ""]),
];

/// Flags of these commands and of all programs whose setting has another name.
const RENAMED: [(&str, &str); 8] = [
    ("sink", "sinks"),
    ("protocol", "mqtt.version"),
    ("otlp", "otlp.endpoint"),
    ("forward", "forward.url"),
    ("forward-token-file", "forward.token_file"),
    ("forward-ca", "forward.tls.ca"),
    ("forward-cert", "forward.tls.cert"),
    ("forward-key", "forward.tls.key"),
];

/// Flags that are settings of every command that has them.
const ALWAYS: [&str; 2] = ["postgres-url", "worker-amqp-url"];

const HEAD: &str = "\
# Command line

Every program, command and flag. This page is generated from the programs by `./dev docs`; `--help` has the same texts.

A flag with a variable is a [setting](settings.md): the flag takes precedence over the variable, and the variable over the line in
the file of `--config`. A variable with `_FILE` at its end names a file with the value. [Exit codes](settings.md#exit-codes) are
those of all programs.
";

/// The text of the page.
///
/// # Panics
/// If a table above names a setting that the documentation does not have.
pub fn generate(repository: &Path) -> String {
    let settings = example_settings::documented(repository);
    let unknown: Vec<_> = RENAMED.iter().filter(|(_, setting)| !settings.contains(*setting)).collect();
    assert!(unknown.is_empty(), "no table of settings has {unknown:?}");
    let mut programs = programs();
    programs.iter_mut().for_each(Command::build);
    let mut text = HEAD.to_owned();
    text += "\n## Flags of every program\n\nThey may stand before or behind a command.\n\n";
    let common: Vec<_> = programs[0].get_arguments().filter(|arg| is_common(arg)).collect();
    text += &flags(&common, |arg| setting(&settings, &[""], arg));
    for program in &programs {
        text += &format!("\n## {}\n\n{}\n", program.get_name(), sentences(program));
        let shared = || program.get_arguments().filter(|arg| arg.is_global_set());
        let own: Vec<_> = shared().filter(|arg| !is_common(arg)).collect();
        if !own.is_empty() {
            text += &format!("\nFor all of its commands:\n\n{}", flags(&own, |_| None));
        }
        let found = leaves(program);
        if found.len() > 1 {
            text += "\n| command | what it does |\n| --- | --- |\n";
            for command in &found {
                let name = name(command);
                let about = about(command).swap_remove(0);
                text += &format!("| [`{name}`](#{}) | {about} |\n", name.replace(' ', "-"));
            }
        }
        for command in found {
            let is_own = |arg: &&Arg| is_shown(arg) && shared().all(|shared| shared.get_id() != arg.get_id());
            let arguments: Vec<_> = command.get_arguments().filter(is_own).collect();
            text += &section(command, &arguments, &settings);
        }
    }
    text
}

/// The commands below `command` that have no commands of their own; itself if it is such a one.
fn leaves(command: &Command) -> Vec<&Command> {
    let visible = command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help");
    let below: Vec<_> = visible.flat_map(leaves).collect();
    if below.is_empty() { vec![command] } else { below }
}

fn section(command: &Command, arguments: &[&Arg], settings: &BTreeSet<String>) -> String {
    let name = name(command);
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").lines().map(str::trim).collect::<Vec<_>>().join("\n");
    let mut text = String::new();
    if name.contains(' ') {
        text += &format!("\n### {name}\n\n{}\n", sentences(command));
    }
    text += &format!("\n```\n{usage}\n```\n");
    if !arguments.is_empty() {
        let tables = SETTERS.iter().find(|(setter, _)| *setter == name).map(|(_, tables)| *tables);
        let tables_of = |arg: &Arg| {
            let always = arg.get_long().is_some_and(|long| ALWAYS.contains(&long));
            tables.or_else(|| always.then_some(&[""]))
        };
        text += &format!("\n{}", flags(arguments, |arg| setting(settings, tables_of(arg)?, arg)));
    }
    let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    if let Some((_, examples)) = examples.split_once(":\n") {
        let examples: Vec<_> = examples.lines().map(|line| line.strip_prefix("  ").unwrap_or(line)).collect();
        text += &format!("\n```\n{}\n```\n", examples.join("\n"));
    }
    text
}

/// A table of flags and arguments. The column of variables is left out if there are none.
fn flags(arguments: &[&Arg], setting: impl Fn(&Arg) -> Option<String>) -> String {
    let variables: Vec<_> = arguments.iter().map(|arg| setting(arg).map(|name| variable(&name))).collect();
    let has_variables = variables.iter().any(Option::is_some);
    let head = if has_variables {
        "| flag | variable | default | meaning |\n| --- | --- | --- | --- |\n"
    } else {
        "| flag | default | meaning |\n| --- | --- | --- |\n"
    };
    let mut text = head.to_owned();
    for (arg, variable) in arguments.iter().zip(variables) {
        let (meaning, default) = meaning(arg);
        let variable = variable.map(|name| format!("`{name}`")).unwrap_or_default();
        let variable = if has_variables { format!("{variable} | ") } else { String::new() };
        text += &format!("| `{}` | {variable}{default} | {meaning} |\n", form(arg).replace('|', "\\|"));
    }
    text
}

/// An argument as it is written, such as `--sink SINK`.
fn form(arg: &Arg) -> String {
    let values: Vec<_> = arg.get_value_names().unwrap_or_default().iter().map(|name| name.as_str()).collect();
    let values = if arg.get_action().takes_values() { values.join(" ") } else { String::new() };
    let flag = match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(long)) => format!("-{short}, --{long}"),
        (None, Some(long)) => format!("--{long}"),
        (Some(short), None) => format!("-{short}"),
        (None, None) if arg.get_num_args().is_some_and(|range| range.max_values() > 1) => {
            return values + "…";
        }
        (None, None) => return values,
    };
    if values.is_empty() { flag } else { format!("{flag} {values}") }
}

/// What an argument means, and its default.
fn meaning(arg: &Arg) -> (String, String) {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let (help, written) = match help.rsplit_once(" [default: ") {
        Some((help, default)) => (help.to_owned(), Some(default.trim_end_matches(']').to_owned())),
        None => (help, None),
    };
    let values = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect::<Vec<_>>();
    let is_switch = !arg.get_action().takes_values();
    let default = match written {
        _ if arg.is_required_set() => "required".to_owned(),
        Some(default) => escape(&default),
        None if values.is_empty() || is_switch => String::new(),
        None => format!("`{}`", values.join(",")),
    };
    let values = arg.get_possible_values();
    let values: Vec<_> =
        values.iter().filter(|value| !value.is_hide_set()).map(|value| value.get_name()).collect();
    let is_listed = is_switch || values.iter().all(|value| help.contains(value));
    let help = if is_listed { help } else { format!("{help}: {}", values.join(", ")) };
    (escape(&help), default)
}

/// The setting of a flag, searched for in these tables of settings.
fn setting(settings: &BTreeSet<String>, tables: &[&str], arg: &Arg) -> Option<String> {
    let long = arg.get_long()?;
    if let Some((_, renamed)) = RENAMED.iter().find(|(flag, _)| *flag == long) {
        return Some((*renamed).to_owned());
    }
    let names = tables.iter().map(|table| format!("{table}{}", long.replace('-', "_")));
    names.into_iter().find(|name| settings.contains(name))
}

/// The environment variable of a setting.
fn variable(setting: &str) -> String {
    format!("GARENNE_{}", setting.replace('.', "__").to_uppercase())
}

fn is_common(arg: &Arg) -> bool {
    arg.is_global_set() && arg.get_help_heading() == Some("Common options") && arg.get_id() != "timeout"
}

/// Whether an argument is part of the page: not hidden, and not `--help` or `--version`.
fn is_shown(arg: &Arg) -> bool {
    let is_builtin = matches!(
        arg.get_action(),
        ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
    );
    !is_builtin && !arg.is_hide_set()
}

fn name(command: &Command) -> String {
    command.get_bin_name().unwrap_or(command.get_name()).to_owned()
}

/// The paragraphs of what a command does. The first one is short.
fn about(command: &Command) -> Vec<String> {
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let words = |text: &str| escape(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    about.split("\n\n").map(words).collect()
}

/// What a command does, as sentences.
fn sentences(command: &Command) -> String {
    let end = |text: String| if text.ends_with('.') { text } else { text + "." };
    about(command).into_iter().map(end).collect::<Vec<_>>().join(" ")
}

/// Text for a cell of a table.
fn escape(text: &str) -> String {
    text.chars().fold(String::new(), |mut escaped, c| {
        if matches!(c, '|' | '<' | '*' | '[' | ']') {
            escaped.push('\\');
        }
        escaped.push(c);
        escaped
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::docs::repository;

    #[test]
    fn the_page_has_every_command_and_flag_of_the_programs() {
        let generated = generate(&repository());
        let page = fs::read_to_string(repository().join(PATH)).unwrap_or_default();
        assert!(page == generated, "{PATH} differs from the programs: run `./dev docs`");
    }

    #[test]
    fn a_flag_has_the_variable_of_its_setting() {
        let page = generate(&repository());
        for row in [
            "| `--amqp-url URL` | `GARENNE_AMQP_URL` | amqp://guest:guest@127.0.0.1:5672/%2f |",
            "| `--listen ADDR` | `GARENNE_LISTEN` | 127.0.0.1:8080 |",
            "| `--listen ADDR` | `GARENNE_DASHBOARD__LISTEN` | 127.0.0.1:9465 |",
            "| `--forward-key FILE` | `GARENNE_FORWARD__TLS__KEY` |  |",
            "| `--protocol VERSION` | `GARENNE_MQTT__VERSION` | 3.1.1 |",
            "| `--speed SPEED` | `max` |",
        ] {
            assert!(page.contains(row), "the page has no row {row}");
        }
        assert!(!page.contains("garenne-drill die-with-parent"), "the command is internal");
    }

    #[test]
    fn commands_whose_flags_are_settings_exist() {
        let page = generate(&repository());
        for (command, _) in SETTERS {
            let usage = format!("\n```\n{command} [OPTIONS]");
            assert!(page.contains(&usage), "{command} is no command");
        }
    }
}
