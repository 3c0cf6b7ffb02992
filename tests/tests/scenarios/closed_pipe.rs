//! The reader of a program's output goes away, as `head -1` does. The program neither panics nor calls it an error.

use anyhow::{Result, ensure};
use garenne_tests::harness::{client::with_id, process::Program, test_env::TestEnv};

#[tokio::test]
async fn a_closed_pipe_is_no_error() -> Result<()> {
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    for n in 0..100 {
        let letter = with_id(&format!("letter-{n}")).with_type("bench.noop".into());
        env.client().publish("", "garenne.dead", letter, b"{}").await?;
    }
    for (program, arguments) in [
        ("garenne", "--help"),
        ("garenne", "completions bash"),
        ("garenne", "topology check"),
        ("garenne", "topology export"),
        ("garenne", "queue list garenne.dead"),
        ("garenne", "queue list garenne.dead --json"),
        ("garenne", "dead list"),
        ("garenne", "dead list --json"),
        ("garenne", "task find letter-1"),
        ("garenne", "audit list"),
        ("garenne-worker", "--help"),
        ("garenne-worker", "--print-config"),
        ("garenne-producer", "--help"),
    ] {
        let words = Program::new(program).args(arguments.split(' '));
        let words = words.env("GARENNE_AMQP_URL", env.operator_url());
        let (read, unread) = (words.run().await?, words.run_unread().await?);
        ensure!(!read.stdout.is_empty(), "{program} {arguments} prints nothing: {read:?}");
        let is_silent = !unread.stderr.iter().any(|line| line.contains("panicked") || line.contains("pipe"));
        ensure!(is_silent && unread.code == read.code, "{program} {arguments}: {read:?}, unread {unread:?}");
    }
    Ok(())
}
