//! All figures of a run: a table for people, which the documentation can take as it is, and an
//! object for scripts.

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use serde_json::{Value, json};

use crate::Scale;
use crate::figure::{Figure, HEADER};

/// Of the JSON; raised when a field changes its meaning or goes.
const VERSION: u32 = 1;

/// The table.
pub fn table(figures: &[Figure]) -> String {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(HEADER);
    for figure in figures {
        table.add_row(figure.line());
    }
    table.to_string()
}

/// The object.
pub fn json(figures: &[Figure], scale: &Scale) -> Value {
    json!({
        "version": VERSION,
        "program": env!("CARGO_PKG_VERSION"),
        "optimised": !cfg!(debug_assertions),
        "machine": { "processors": processors(), "model": model() },
        "scale": {
            "rows": scale.rows,
            "rounds": scale.rounds,
            "seconds": scale.span.as_secs_f64(),
        },
        "figures": figures.iter().map(Figure::json).collect::<Vec<_>>(),
    })
}

/// What it was measured on, in a line.
pub fn machine() -> String {
    let build = if cfg!(debug_assertions) {
        "unoptimised build, whose figures mean nothing"
    } else {
        "optimised build"
    };
    format!("{} processors, {}, {build}", processors(), model())
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(0, usize::from)
}

/// As the kernel names it (proc(5), cpuinfo).
fn model() -> String {
    let all = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = all.lines().find_map(|line| {
        let (field, value) = line.split_once(':')?;
        (field.trim() == "model name").then(|| value.trim().to_owned())
    });
    name.unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_figure_is_in_both() {
        let figures = [
            Figure::new("first", "one", "s", vec![1.0]),
            Figure::new("second", "other", "rows/s", vec![2.0]).beside(&[4.0]),
        ];
        let table = table(&figures);
        assert_eq!(table.lines().count(), 2 + figures.len(), "{table}");
        assert!(table.contains("| 0.50 "), "{table}");
        let scale = Scale {
            rows: 1,
            rounds: 1,
            span: Duration::from_secs(1),
        };
        let json = json(&figures, &scale);
        assert_eq!(json["figures"][1]["ratio"], 0.5);
        assert_eq!(json["figures"].as_array().map(Vec::len), Some(2));
    }
}
