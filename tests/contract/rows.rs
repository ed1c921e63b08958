//! Rows and the publications they become.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use outbox_relay::message::{Body, OutboxRow, Publication, RowId, Rules};

/// A row with everything a row usually has.
pub fn row(id: i64, exchange: &str, routing_key: &str) -> OutboxRow {
    OutboxRow {
        id: RowId(id),
        message_id: format!("message-{id}"),
        exchange: exchange.to_owned(),
        routing_key: routing_key.to_owned(),
        ordering_key: Some(format!("key-{}", id % 10)),
        payload: Body::Bytes(format!("{{\"id\": {id}}}").into()),
        headers: Some(r#"{"tenant": "eu"}"#.to_owned()),
        message_type: Some("OrderCreated".to_owned()),
        correlation_id: None,
        content_type: None,
        properties: None,
        created_at: UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        attempts: 0,
    }
}

/// The defaults of the configuration.
pub fn rules() -> Rules {
    Rules {
        max_message_size: 16 * 1024 * 1024,
        frame_max: 131_072,
        mandatory: true,
        optional_exchanges: vec!["optional.*".to_owned()],
        allowed_exchanges: vec!["*".to_owned()],
        default_content_type: "application/json",
        login: None,
    }
}

/// What the row becomes.
pub fn of(row: &OutboxRow) -> Arc<Publication> {
    Arc::new(Publication::from_row(row.clone(), &rules()).expect("a fit row"))
}

/// A usual publication.
pub fn publication(id: i64, exchange: &str, routing_key: &str) -> Arc<Publication> {
    of(&row(id, exchange, routing_key))
}
