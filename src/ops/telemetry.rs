//! Logs: text or JSON on the standard error output, with a level that can be changed while running.
//!
//! Guards what must never be logged. At TRACE, lapin prints whole frames, which hold payloads and
//! the password of the login; at WARN it prints returned messages with their payload
//! (`lapin::returned_messages`, lapin 4.12.3). A second filter that no setting reaches removes
//! both. tokio-postgres speaks the `log` crate's language, which is not listened to.

use std::io::{self, IsTerminal};

use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::filter::{EnvFilter, FilterFn, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::reload;

use crate::config::{LogFormat, LogSection};

/// Client crates that know passwords and payloads, by the first part of their targets.
const CLIENTS: [&str; 8] = [
    "lapin",
    "amq_protocol",
    "amq_protocol_tcp",
    "async_rs",
    "rustls",
    "rustls_connector",
    "tokio_postgres",
    "hyper",
];
/// The finest level at which none of them prints what it sends or receives.
const CLIENT_LEVEL: Level = Level::INFO;
/// Prints payloads at any level.
const MUTED: &str = "lapin::returned_messages";

/// The running log.
#[derive(Clone, Debug)]
pub struct Telemetry {
    level: reload::Handle<EnvFilter, Registry>,
}

/// Why the log cannot be set up or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TelemetryError {
    /// The level is not understood. The configuration refuses such a value before.
    #[error("log.level: {0}")]
    Level(#[from] tracing_subscriber::filter::ParseError),
    /// Something else logs already in this process.
    #[error("cannot set up logging: {0}")]
    Taken(#[from] tracing::subscriber::SetGlobalDefaultError),
    /// The log is gone; happens only while the process ends.
    #[error("cannot change the log level: {0}")]
    Gone(#[from] reload::Error),
}

impl Telemetry {
    /// Makes this the log of the process. Once only.
    ///
    /// # Errors
    /// [`TelemetryError`], if the level is not understood or the process logs already.
    pub fn install(section: &LogSection) -> Result<Self, TelemetryError> {
        let (subscriber, telemetry) = subscriber(section, colours(), io::stderr)?;
        tracing::subscriber::set_global_default(subscriber)?;
        Ok(telemetry)
    }

    /// Changes the level at once.
    ///
    /// # Errors
    /// [`TelemetryError::Level`] if it is not understood; the old level stays.
    pub fn set_level(&self, level: &str) -> Result<(), TelemetryError> {
        self.level.reload(filter(level)?)?;
        Ok(())
    }
}

/// What the level lets through. lapin reports what its caller is told anyway, as an error even
/// where it is a farewell; it speaks only where it is asked for by name (`trace,lapin=info`).
fn filter(level: &str) -> Result<EnvFilter, tracing_subscriber::filter::ParseError> {
    match level {
        "error" | "warn" | "info" | "debug" | "trace" => {
            EnvFilter::try_new(format!("{level},lapin=off"))
        }
        _ => EnvFilter::try_new(level),
    }
}

/// Colours only where a person looks, and not against their will (no-color.org).
fn colours() -> bool {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stderr().is_terminal() && !unwanted
}

fn subscriber<W>(
    section: &LogSection,
    colours: bool,
    writer: W,
) -> Result<(impl Subscriber + Send + Sync, Telemetry), TelemetryError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let (level, handle) = reload::Layer::new(filter(&section.level)?);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(colours);
    let lines = match section.format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let subscriber = Registry::default()
        .with(level)
        .with(lines.with_filter(discreet()));
    Ok((subscriber, Telemetry { level: handle }))
}

/// Lets nothing through that may hold a payload or a password, whatever the level.
fn discreet() -> FilterFn {
    filter_fn(is_discreet)
}

fn is_discreet(event: &Metadata<'_>) -> bool {
    let target = event.target();
    let client = target.split("::").next().unwrap_or(target);
    let muted = target
        .strip_prefix(MUTED)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
    !muted && (!CLIENTS.contains(&client) || *event.level() <= CLIENT_LEVEL)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Lines {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(level: &str, format: LogFormat, what: impl FnOnce(&Telemetry)) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let section = LogSection {
            format,
            level: level.to_owned(),
        };
        let (subscriber, telemetry) = subscriber(&section, false, move || writer.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, || what(&telemetry));
        lines.text()
    }

    #[test]
    fn no_setting_makes_a_client_print_what_it_sends() {
        for level in [
            "trace,lapin=trace",
            "lapin=trace",
            "lapin::returned_messages=trace,trace",
        ] {
            let text = logged(level, LogFormat::Text, |_| {
                tracing::warn!(target: "lapin::returned_messages", "canary");
                tracing::error!(target: "lapin::returned_messages::deeper", "canary");
                tracing::trace!(target: "lapin::channels", frame = "canary");
                tracing::debug!(target: "lapin", "canary");
                tracing::trace!(target: "rustls::client::hs", "canary");
                tracing::debug!(target: "amq_protocol_tcp", "canary");
                tracing::warn!(target: "lapin::channels", "connection is closing");
            });
            assert!(!text.contains("canary"), "{text}");
            assert!(text.contains("connection is closing"), "{text}");
        }
    }

    #[test]
    fn lapin_speaks_only_where_it_is_asked_for_by_name() {
        for (level, speaks) in [("info", false), ("trace", false), ("info,lapin=warn", true)] {
            let text = logged(level, LogFormat::Text, |_| {
                tracing::error!(target: "lapin::channels", "connection is closing");
                tracing::error!("ours");
            });
            assert!(text.contains("ours"), "{level}: {text}");
            assert_eq!(text.contains("closing"), speaks, "{level}: {text}");
        }
    }

    #[test]
    fn our_own_lines_follow_the_level() {
        let text = logged("info", LogFormat::Text, |_| {
            tracing::info!(rows = 3, "published");
            tracing::debug!("not wanted");
        });
        assert!(text.contains("published rows=3"), "{text}");
        assert!(!text.contains("not wanted"));
    }

    #[test]
    fn the_level_can_be_changed_while_running() {
        let text = logged("warn", LogFormat::Text, |telemetry| {
            tracing::info!("before");
            telemetry.set_level("info").unwrap();
            tracing::info!("after");
            assert!(telemetry.set_level("=nonsense=").is_err());
            tracing::info!("still");
        });
        assert!(!text.contains("before"));
        assert!(text.contains("after") && text.contains("still"), "{text}");
    }

    #[test]
    fn json_lines_are_objects_with_flat_fields() {
        let text = logged("info", LogFormat::Json, |_| {
            tracing::info!(rows = 3, "published");
        });
        let line: serde_json::Value = serde_json::from_str(text.trim()).unwrap();
        assert_eq!(line["message"], "published");
        assert_eq!(line["rows"], 3);
        assert_eq!(line["level"], "INFO");
    }
}
