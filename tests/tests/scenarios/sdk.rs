//! The tests of the SDKs for other languages, which speak the protocol of handlers with real processes.

use anyhow::Result;
use garenne_tests::harness::{handler::repository_file, process::Program, suite};

async fn passes(program: Program) -> Result<()> {
    let ended = program.run().await?;
    assert_eq!(ended.code, Some(0), "{:#?}\n{:#?}", ended.stdout, ended.stderr);
    Ok(())
}

/// Whether the whole suite runs and `program` is installed. Else the test is left out.
async fn runs_in_full(program: &str) -> bool {
    let is_installed = Program::foreign(program).arg("version").run().await.is_ok();
    let runs = suite::is_full() && is_installed;
    if !runs {
        suite::leave_out(format_args!("it needs `./dev test --full` and {program}"));
    }
    runs
}

#[tokio::test]
async fn the_python_sdk_passes_its_tests() -> Result<()> {
    suite::time_this_test();
    let tests = repository_file("sdk/python/tests");
    passes(Program::foreign("python3").arg("-m").arg("unittest").arg("discover").arg("-s").arg(tests)).await
}

#[tokio::test]
async fn handlers_in_java_and_shell_pass_their_tests() -> Result<()> {
    suite::time_this_test();
    if !runs_in_full("java").await {
        return Ok(());
    }
    passes(Program::foreign("python3").arg(repository_file("examples/handlers/test_handlers.py"))).await
}

#[tokio::test]
async fn the_node_sdk_passes_its_tests() -> Result<()> {
    suite::time_this_test();
    if !runs_in_full("node").await {
        return Ok(());
    }
    passes(Program::foreign("node").arg("--test").arg(repository_file("sdk/node/test/"))).await
}

#[tokio::test]
async fn the_go_sdk_passes_its_tests() -> Result<()> {
    suite::time_this_test();
    if !runs_in_full("go").await {
        return Ok(());
    }
    // Go 1.19 has no option for the folder.
    let script = "cd \"$0\" && go test ./...";
    passes(Program::foreign("sh").arg("-c").arg(script).arg(repository_file("sdk/go"))).await
}
