//! A message as the relay would make it of a row.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use outbox_relay::message::{Body, OutboxRow, Publication, RowId, Rules};

/// The one of this number and ordering key, to a queue over the default exchange.
///
/// # Panics
/// If one of its parts is longer than AMQP allows.
pub fn publication(number: i64, queue: &str, key: &str, body: String) -> Arc<Publication> {
    let row = OutboxRow {
        id: RowId(number),
        message_id: format!("0b5e3a52-7f0c-4f0c-9d4e-{number:012}"),
        exchange: String::new(),
        routing_key: queue.to_owned(),
        ordering_key: Some(key.to_owned()),
        payload: Body::Bytes(body.into()),
        headers: None,
        message_type: Some("order.placed".to_owned()),
        correlation_id: None,
        content_type: None,
        properties: None,
        created_at: UNIX_EPOCH,
        attempts: 0,
    };
    Arc::new(Publication::from_row(row, &rules()).expect("a fit row"))
}

/// As by default, of a broker with the usual frames.
pub fn rules() -> Rules {
    Rules {
        max_message_size: 1 << 24,
        frame_max: 131_072,
        mandatory: true,
        optional_exchanges: Vec::new(),
        allowed_exchanges: vec!["*".to_owned()],
        default_content_type: "application/json",
        login: None,
    }
}
