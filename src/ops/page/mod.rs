//! `/`: one read-only page for people, and the JSON behind it.
//!
//! The page itself never changes; its script asks for `page.json` every two seconds and writes
//! what comes as text, never as markup. Everything is served from here, so that it works without
//! any other network, and a strict policy keeps it so (`http`). History is kept in memory, for a
//! quarter of an hour, so that the charts are not empty when somebody comes to look.

mod board;
mod history;
mod told;

use bytes::Bytes;

pub use board::{Board, Facts};

use super::http::{Page, Site};
use std::sync::Arc;

/// Adds the page to a site.
#[must_use]
pub fn with_page(site: Site, board: Arc<Board>) -> Site {
    let fixed = |content_type, text: &'static str| {
        move || Page {
            content_type,
            body: Bytes::from_static(text.as_bytes()),
        }
    };
    let html = fixed("text/html; charset=utf-8", include_str!("page.html"));
    let script = fixed("text/javascript; charset=utf-8", include_str!("page.js"));
    let style = fixed("text/css; charset=utf-8", include_str!("page.css"));
    site.with_page("/", html)
        .with_page("/page.js", script)
        .with_page("/page.css", style)
        .with_page("/page.json", move || board.page())
}
