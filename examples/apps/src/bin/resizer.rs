//! Resizes images: CPU-bound tasks that report their progress and stop between two rows of pixels.
//!
//! Images are PPM files in `IMAGES`, so that the example needs no image library. `7.ppm` at 80 pixels becomes `7-80.ppm`, which
//! is never seen half-written.

use std::{env, fs, io::Write, path::PathBuf};

use garenne::{Data, Exit, TaskContext, TaskError, TaskOptions, cli, json_payload};
use tempfile::NamedTempFile;

#[derive(serde::Deserialize)]
struct Resize {
    image: u32,
    width: usize,
}
json_payload!(Resize, "image.resize");

struct Images(PathBuf);

async fn resize(cx: TaskContext, images: Data<Images>, task: Resize) -> garenne::Result<String> {
    let source = fs::read(images.0.join(format!("{}.ppm", task.image)))?; // retried: it may not be uploaded yet
    let (width, height, pixels) =
        read_ppm(&source).ok_or_else(|| TaskError::reject("no binary PPM image"))?;
    if task.width == 0 {
        return Err(TaskError::invalid("width is 0, expected 1 or more").into());
    }
    let new_height = (height * task.width / width).max(1);
    let mut resized = format!("P6 {} {new_height} 255\n", task.width).into_bytes();
    for y in 0..new_height {
        if cx.token().is_cancelled() {
            return Err(TaskError::interrupted().into());
        }
        for x in 0..task.width {
            let nearest = 3 * (y * height / new_height * width + x * width / task.width);
            resized.extend(&pixels[nearest..nearest + 3]);
        }
        cx.progress((y + 1) as f64 / new_height as f64);
    }
    let name = format!("{}-{}.ppm", task.image, task.width);
    let mut file = NamedTempFile::new_in(&images.0)?;
    file.write_all(&resized)?;
    file.persist(images.0.join(&name))?; // another run writes the same file
    Ok(name)
}

/// Width, height and pixels.
fn read_ppm(file: &[u8]) -> Option<(usize, usize, &[u8])> {
    let (header, pixels) = file.split_at_checked(file.iter().position(|byte| *byte == b'\n')? + 1)?;
    let header: Vec<_> = str::from_utf8(header).ok()?.split_whitespace().collect();
    let &["P6", width, height, "255"] = &header[..] else { return None };
    let (width, height) = (width.parse().ok()?, height.parse().ok()?);
    (width > 0 && height > 0 && pixels.len() == 3 * width * height).then_some((width, height, pixels))
}

fn main() -> Exit {
    cli::run("resizer", |worker| {
        let images = Images(env::var("IMAGES")?.into());
        Ok(worker.data(images).handle_with(resize, TaskOptions::long().cpu_bound()))
    })
}
