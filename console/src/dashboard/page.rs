//! The pages, embedded in the program. They load nothing from other hosts.

use axum::{
    extract::Path,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};

use super::problem::Problem;

const INDEX: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/style.css");
const DEVICES: &str = include_str!("page/devices.html");
const SCRIPT: &str = include_str!("page/app.js");
const DEVICES_SCRIPT: &str = include_str!("page/devices.js");
const CURVE: &str = include_str!("page/curve.js");
const DOM: &str = include_str!("page/dom.js");
const CHARTS: &str = include_str!("page/charts.js");
const ICON: &str = include_str!("page/icon.svg");

pub(super) async fn index() -> Response {
    text("text/html; charset=utf-8", INDEX)
}

pub(super) async fn devices() -> Response {
    text("text/html; charset=utf-8", DEVICES)
}

pub(super) async fn file(Path(file): Path<String>) -> Result<Response, Problem> {
    Ok(match file.as_str() {
        "style.css" => text("text/css; charset=utf-8", STYLE),
        "app.js" => text("text/javascript; charset=utf-8", SCRIPT),
        "devices.js" => text("text/javascript; charset=utf-8", DEVICES_SCRIPT),
        "curve.js" => text("text/javascript; charset=utf-8", CURVE),
        "dom.js" => text("text/javascript; charset=utf-8", DOM),
        "charts.js" => text("text/javascript; charset=utf-8", CHARTS),
        "icon.svg" | "favicon.ico" => text("image/svg+xml", ICON),
        _ => return Err(Problem::new(StatusCode::NOT_FOUND, format!("no route /{file}"))),
    })
}

fn text(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")], text).into_response()
}
