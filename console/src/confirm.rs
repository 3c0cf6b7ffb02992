//! Asks for a confirmation before a command does what no other command undoes.

use std::io::{BufRead, IsTerminal, Write, stderr, stdin};

use garenne_common::exit::{Exit, Failure};
use garenne_operator::waits;

/// Whether the command can ask for a confirmation: it has a terminal to read from and to write to.
pub(crate) fn is_interactive() -> bool {
    stdin().is_terminal() && stderr().is_terminal()
}

/// Returns if `yes` is set, or a person confirms that the command may do this. `consequence` is a sentence without a full stop,
/// `repeat` says how to confirm without a terminal. Otherwise the exit code is that for bad usage.
pub(crate) fn confirm(consequence: &str, repeat: &str, yes: bool) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !is_interactive() {
        return Err(Failure::new(Exit::Usage, format_args!("{consequence}: {repeat}")));
    }
    // A person may take any time.
    waits::unlimited();
    let confirmed =
        ask(consequence, &mut stdin().lock(), &mut stderr().lock()).map_err(anyhow::Error::from)?;
    waits::begin("an answer of the broker");
    if confirmed { Ok(()) } else { Err(Failure::new(Exit::Usage, "not confirmed: nothing was done")) }
}

fn ask(consequence: &str, input: &mut impl BufRead, output: &mut impl Write) -> std::io::Result<bool> {
    write!(output, "{consequence}. Continue? [y/N] ")?;
    output.flush()?;
    let mut answer = String::new();
    input.read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_confirms() {
        for (answer, expected) in [
            ("y\n", true),
            ("YES\n", true),
            ("\n", false),
            ("", false),
            ("n\n", false),
            ("yesterday\n", false),
        ] {
            let mut shown = Vec::new();
            let confirmed = ask("drain shuts 3 workers down", &mut answer.as_bytes(), &mut shown).unwrap();
            assert_eq!(confirmed, expected, "{answer:?}");
            assert_eq!(String::from_utf8(shown).unwrap(), "drain shuts 3 workers down. Continue? [y/N] ");
        }
    }
}
