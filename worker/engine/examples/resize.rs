//! A worker with one handler. This is the program of the README.

use garenne::{Exit, TaskError, cli, json_payload, serde};

#[derive(serde::Deserialize)]
#[serde(crate = "garenne::serde")]
struct Resize {
    url: String,
    width: u32,
}
json_payload!(Resize, "image.resize");

async fn resize(task: Resize) -> Result<String, TaskError> {
    if task.width == 0 {
        return Err(TaskError::invalid("width is 0, expected 1 or more")); // a dead letter with this text
    }
    Ok(format!("{} at {} px", task.url, task.width))
}

fn main() -> Exit {
    cli::run("resizer", |worker| Ok(worker.handle(resize)))
}
