//! What was measured: a table for people, an object for scripts.

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde_json::{Value, json};

use super::Arguments;
use super::latency::Latency;
use super::stage::Drain;
use crate::config::Config;

/// Of the `--json` output; raised when a field changes its meaning or goes.
const JSON_VERSION: u32 = 1;

/// Everything that was measured, and how.
pub(super) struct Report {
    arguments: Arguments,
    channels: usize,
    in_flight: usize,
    pub(super) bare: Vec<Drain>,
    pub(super) relay: Vec<Drain>,
    pub(super) bare_latency: Option<Latency>,
    pub(super) relay_latency: Option<Latency>,
}

impl Report {
    pub(super) fn of(arguments: &Arguments, config: &Config) -> Self {
        Self {
            arguments: arguments.clone(),
            channels: config.relay.channels,
            in_flight: config.relay.max_in_flight,
            bare: Vec::new(),
            relay: Vec::new(),
            bare_latency: None,
            relay_latency: None,
        }
    }

    fn lines(&self) -> Vec<Line> {
        let median_of =
            |drains: &[Drain], what: fn(&Drain) -> f64| median(drains.iter().map(what).collect());
        let line = |name, unit, bare: f64, relay: f64, compared| Line {
            name,
            unit,
            bare,
            relay,
            compared,
        };
        let mut lines = vec![
            line(
                "drain",
                "rows/s",
                median_of(&self.bare, Drain::per_second),
                median_of(&self.relay, Drain::per_second),
                Compared::Ratio,
            ),
            line(
                "cpu",
                "µs/row",
                median_of(&self.bare, Drain::cpu_micros),
                median_of(&self.relay, Drain::cpu_micros),
                Compared::Ratio,
            ),
        ];
        if let (Some(bare), Some(relay)) = (&self.bare_latency, &self.relay_latency) {
            for (name, quantile) in [
                ("latency_p50", 0.5),
                ("latency_p90", 0.9),
                ("latency_p99", 0.99),
                ("latency_max", 1.0),
            ] {
                let (bare, relay) = (millis(bare, quantile), millis(relay, quantile));
                lines.push(line(name, "ms", bare, relay, Compared::Difference));
            }
        }
        lines
    }

    pub(super) fn text(&self) -> String {
        let Arguments {
            rows,
            rounds,
            rate,
            writers,
            keys,
            size,
            classic,
            ..
        } = &self.arguments;
        let queue = if *classic { "classic" } else { "quorum" };
        let mut table = Table::new();
        table.load_style(NOTHING);
        table.set_header(["", "bare publisher", "relay", "compared"]);
        for line in self.lines() {
            table.add_row(line.cells());
        }
        let table: Vec<_> = table
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect();
        format!(
            "{}\n\n\
             Medians of {rounds} drains of {rows} rows; {size} bytes, {keys} keys, durable {queue} queue, \
             persistent and mandatory; {} channels, {} unconfirmed at most.\n\
             Latency at {rate} rows/s from {writers} writers: commit to confirm for the relay, publish \
             to confirm for the bare publisher.",
            table.join("\n"),
            self.channels,
            self.in_flight,
        )
    }

    /// # Errors
    /// Never in fact: all of it can be told in JSON.
    pub(super) fn json(&self) -> serde_json::Result<String> {
        let Arguments {
            rows,
            rounds,
            rate,
            span,
            writers,
            keys,
            size,
            classic,
            ..
        } = &self.arguments;
        let measures: Vec<_> = self.lines().iter().map(Line::object).collect();
        let drains = |drains: &[Drain]| {
            let rates = drains.iter().map(|drain| drain.per_second().round());
            rates.collect::<Vec<_>>()
        };
        serde_json::to_string_pretty(&json!({
            "version": JSON_VERSION,
            "measures": measures,
            "drains_per_second": { "bare": drains(&self.bare), "relay": drains(&self.relay) },
            "settings": {
                "rows": rows, "rounds": rounds, "rate": rate, "seconds": span.as_secs_f64(),
                "writers": writers, "keys": keys, "size": size,
                "queue": if *classic { "classic" } else { "quorum" },
                "channels": self.channels, "max_in_flight": self.in_flight,
            },
        }))
    }
}

/// How relay and bare publisher are compared.
#[derive(Clone, Copy)]
enum Compared {
    Ratio,
    Difference,
}

struct Line {
    name: &'static str,
    unit: &'static str,
    bare: f64,
    relay: f64,
    compared: Compared,
}

impl Line {
    fn compared(&self) -> f64 {
        match self.compared {
            Compared::Ratio => self.relay / self.bare.max(1e-9),
            Compared::Difference => self.relay - self.bare,
        }
    }

    fn cells(&self) -> Vec<String> {
        let digits = match self.compared {
            Compared::Ratio => 0,
            Compared::Difference => 2,
        };
        let shown = |value: f64| format!("{value:.digits$} {}", self.unit);
        let compared = match self.compared {
            Compared::Ratio => format!("{:.2} ×", self.compared()),
            Compared::Difference => format!("{:+.2} {}", self.compared(), self.unit),
        };
        let name = self.name.replace('_', " ");
        vec![name, shown(self.bare), shown(self.relay), compared]
    }

    fn object(&self) -> Value {
        let round = |value: f64| (value * 1000.0).round() / 1000.0;
        let key = match self.compared {
            Compared::Ratio => "ratio",
            Compared::Difference => "difference",
        };
        json!({
            "name": self.name,
            "unit": self.unit,
            "bare": round(self.bare),
            "relay": round(self.relay),
            key: round(self.compared()),
        })
    }
}

fn millis(latency: &Latency, quantile: f64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "minutes at most")]
    let micros = latency.value_at_quantile(quantile) as f64;
    micros / 1000.0
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(vec![4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        assert!(median(Vec::new()).abs() < 1e-9);
    }

    #[test]
    fn throughput_is_compared_as_a_ratio_and_latency_as_a_difference() {
        let line = |compared| Line {
            name: "latency_p50",
            unit: "ms",
            bare: 2.0,
            relay: 3.0,
            compared,
        };
        let ratio = line(Compared::Ratio).cells();
        assert_eq!(ratio, ["latency p50", "2 ms", "3 ms", "1.50 ×"]);
        let difference = line(Compared::Difference).cells();
        assert_eq!(
            difference,
            ["latency p50", "2.00 ms", "3.00 ms", "+1.00 ms"]
        );
    }
}
