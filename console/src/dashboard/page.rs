//! The pages, embedded in the program. They load nothing from other hosts.

use axum::{
    extract::Path,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};

use super::problem::Problem;

const INDEX: &str = concat!(
    include_str!("page/head.html"),
    include_str!("page/index.html"),
    include_str!("page/dialogs.html")
);
const DEVICES: &str = concat!(include_str!("page/head.html"), include_str!("page/devices.html"));
const TASKS: &str = concat!(
    include_str!("page/head.html"),
    include_str!("page/tasks.html"),
    include_str!("page/dialogs.html")
);

const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// The files that the pages load: name, media type and text.
const FILES: [(&str, &str, &str); 31] = [
    ("style.css", CSS, include_str!("page/style.css")),
    ("icon.svg", SVG, include_str!("page/icon.svg")),
    ("favicon.ico", SVG, include_str!("page/icon.svg")),
    ("address.js", SCRIPT, include_str!("page/address.js")),
    ("alarms.js", SCRIPT, include_str!("page/alarms.js")),
    ("app.js", SCRIPT, include_str!("page/app.js")),
    ("charts.js", SCRIPT, include_str!("page/charts.js")),
    ("curve.js", SCRIPT, include_str!("page/curve.js")),
    ("devices.js", SCRIPT, include_str!("page/devices.js")),
    ("dialogs.js", SCRIPT, include_str!("page/dialogs.js")),
    ("dom.js", SCRIPT, include_str!("page/dom.js")),
    ("gateways.js", SCRIPT, include_str!("page/gateways.js")),
    ("groups.js", SCRIPT, include_str!("page/groups.js")),
    ("jobs.js", SCRIPT, include_str!("page/jobs.js")),
    ("kinds.js", SCRIPT, include_str!("page/kinds.js")),
    ("lanes.js", SCRIPT, include_str!("page/lanes.js")),
    ("letter_dialog.js", SCRIPT, include_str!("page/letter_dialog.js")),
    ("letter_errors.js", SCRIPT, include_str!("page/letter_errors.js")),
    ("letter_filter.js", SCRIPT, include_str!("page/letter_filter.js")),
    ("letters.js", SCRIPT, include_str!("page/letters.js")),
    ("pause.js", SCRIPT, include_str!("page/pause.js")),
    ("reload.js", SCRIPT, include_str!("page/reload.js")),
    ("session.js", SCRIPT, include_str!("page/session.js")),
    ("stored.js", SCRIPT, include_str!("page/stored.js")),
    ("table.js", SCRIPT, include_str!("page/table.js")),
    ("tasks.js", SCRIPT, include_str!("page/tasks.js")),
    ("test_task.js", SCRIPT, include_str!("page/test_task.js")),
    ("tiles.js", SCRIPT, include_str!("page/tiles.js")),
    ("verdict.js", SCRIPT, include_str!("page/verdict.js")),
    ("worker_card.js", SCRIPT, include_str!("page/worker_card.js")),
    ("workers.js", SCRIPT, include_str!("page/workers.js")),
];

pub(super) async fn index() -> Response {
    text("text/html; charset=utf-8", INDEX)
}

pub(super) async fn devices() -> Response {
    text("text/html; charset=utf-8", DEVICES)
}

pub(super) async fn tasks() -> Response {
    text("text/html; charset=utf-8", TASKS)
}

pub(super) async fn file(Path(file): Path<String>) -> Result<Response, Problem> {
    let found = FILES.iter().find(|(name, ..)| *name == file);
    let missing = || Problem::new(StatusCode::NOT_FOUND, format!("no route /{file}"));
    found.map(|(_, kind, content)| text(kind, content)).ok_or_else(missing)
}

fn text(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")], text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The addresses that a text imports or links, as they stand after `before`.
    fn linked<'t>(text: &'t str, before: &str) -> Vec<&'t str> {
        text.split(before).skip(1).filter_map(|rest| rest.split('"').next()).collect()
    }

    #[test]
    fn every_file_that_a_page_loads_is_embedded() {
        let embedded = |path: &str| FILES.iter().any(|(name, ..)| path.strip_prefix('/') == Some(*name));
        for (_, _, content) in FILES {
            for path in linked(content, "from \"") {
                assert!(embedded(path), "{path} is imported");
            }
        }
        for page in [INDEX, DEVICES, TASKS] {
            for path in [linked(page, "src=\""), linked(page, "rel=\"stylesheet\" href=\"")].concat() {
                assert!(embedded(path), "{path} is loaded");
            }
        }
    }

    #[test]
    fn the_pages_have_no_inline_scripts_or_styles() {
        for page in [INDEX, DEVICES, TASKS] {
            assert!(!page.contains("style=") && !page.contains("<script>") && !page.contains("onclick"));
        }
    }

    #[test]
    fn scripts_write_no_html() {
        for (name, _, content) in FILES {
            for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
                assert!(!content.contains(word), "{name} has {word}");
            }
        }
    }
}
