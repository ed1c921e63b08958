//! What an operator sees of a running relay: logs, probes, and the HTTP pages.
//!
//! Only shows; decides nothing about rows. What is shown comes from `runtime::health`, which the
//! engine tells how it is doing.

pub mod everyone;
pub mod http;
pub mod metrics;
pub mod page;
pub mod supervisor;
pub mod telemetry;

pub use everyone::Everyone;
pub use http::{HttpServer, Page, Site};
pub use metrics::Metrics;
pub use page::{Board, Facts, with_page};
pub use supervisor::Supervisor;
pub use telemetry::{Telemetry, TelemetryError};
