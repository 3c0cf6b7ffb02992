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

/// The files of the folder `page` with these names: media type, then names.
macro_rules! embedded {
    ($($kind:ident: $($name:literal)+;)+) => {
        &[$($(($name, $kind, include_str!(concat!("page/", $name)))),+),+]
    };
}

/// The files that the pages load: name, media type and text.
const FILES: &[(&str, &str, &str)] = embedded! {
    CSS: "style.css";
    SVG: "icon.svg";
    SCRIPT: "address.js" "alarms.js" "app.js" "charts.js" "curve.js" "devices.js" "dialogs.js" "dom.js"
        "gateways.js" "groups.js" "jobs.js" "kinds.js" "lanes.js" "letter_dialog.js" "letter_errors.js"
        "letter_filter.js" "letters.js" "pause.js" "reload.js" "session.js" "stored.js" "table.js"
        "tasks.js" "test_task.js" "tiles.js" "verdict.js" "worker_card.js" "workers.js";
};

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
    let wanted = if file == "favicon.ico" { "icon.svg" } else { &file };
    let found = FILES.iter().find(|(name, ..)| *name == wanted);
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
