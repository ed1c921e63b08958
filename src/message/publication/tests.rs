use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::message::{DeliveryMode, any_row};

pub(crate) fn rules() -> Rules {
    Rules {
        max_message_size: 1000,
        frame_max: 131_072,
        mandatory: true,
        optional_exchanges: vec!["metrics.*".into()],
        allowed_exchanges: vec!["*".into()],
        default_content_type: "application/json",
        login: Some("relay".into()),
    }
}

fn row() -> OutboxRow {
    OutboxRow {
        id: RowId(42),
        message_id: "invoice:842:send".into(),
        exchange: "orders".into(),
        routing_key: "order.created".into(),
        ordering_key: Some("order-7".into()),
        payload: Body::Bytes(Bytes::from_static(b"{\"n\": 1}")),
        headers: Some(r#"{"tenant": "eu", "n": 3}"#.into()),
        message_type: Some("OrderCreated".into()),
        correlation_id: None,
        content_type: None,
        properties: Some(r#"{"priority": 5}"#.into()),
        created_at: UNIX_EPOCH + Duration::from_millis(1_700_000_000_900),
        attempts: 0,
    }
}

fn unfit(row: &OutboxRow, rules: &Rules) -> (ReasonClass, String) {
    let unfit = Publication::from_row(row.clone(), rules).unwrap_err();
    (unfit.class, unfit.reason)
}

#[test]
fn a_row_becomes_the_message_it_describes() {
    let publication = Publication::from_row(row(), &rules()).unwrap();
    assert_eq!(publication.id(), RowId(42));
    assert_eq!(publication.exchange().as_str(), "orders");
    assert_eq!(publication.routing_key().as_str(), "order.created");
    assert!(publication.is_mandatory());
    assert_eq!(publication.payload().as_ref(), b"{\"n\": 1}");
    let properties = publication.properties();
    let text = |text: &Option<ShortText>| text.as_ref().map(|t| t.as_str().to_owned());
    assert_eq!(text(&properties.message_id).unwrap(), "invoice:842:send");
    assert_eq!(text(&properties.content_type).unwrap(), "application/json");
    assert_eq!(text(&properties.message_type).unwrap(), "OrderCreated");
    assert_eq!(properties.timestamp, Some(1_700_000_000));
    assert_eq!(properties.delivery_mode, DeliveryMode::Persistent);
    assert_eq!(properties.priority, Some(5));
    let headers: Vec<_> = properties.headers.iter().collect();
    let names: Vec<_> = headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["tenant", "n", "x-outbox-id", "x-outbox-key"]);
    assert_eq!(*headers[2].1, FieldValue::Integer(42));
    assert_eq!(*headers[3].1, FieldValue::Text("order-7".into()));
}

#[test]
fn an_unordered_row_carries_no_key() {
    let row = OutboxRow {
        ordering_key: None,
        headers: None,
        ..row()
    };
    let publication = Publication::from_row(row, &rules()).unwrap();
    assert_eq!(publication.properties().headers.iter().count(), 1);
}

#[test]
fn an_optional_exchange_is_published_without_mandatory() {
    let with = |exchange: &str, mandatory| {
        let row = OutboxRow {
            exchange: exchange.into(),
            ..row()
        };
        let rules = Rules {
            mandatory,
            ..rules()
        };
        Publication::from_row(row, &rules).unwrap().is_mandatory()
    };
    assert!(with("metrics", true));
    assert!(!with("metrics.cpu", true));
    assert!(!with("orders", false));
}

#[test]
fn every_text_is_measured_in_bytes() {
    type Set = fn(&mut OutboxRow, String);
    let columns: [(&str, Set, ReasonClass); 6] = [
        (
            "exchange",
            |r, t| r.exchange = t,
            ReasonClass::InvalidExchange,
        ),
        (
            "routing_key",
            |r, t| r.routing_key = t,
            ReasonClass::InvalidRoutingKey,
        ),
        (
            "message_id",
            |r, t| r.message_id = t,
            ReasonClass::InvalidMessageId,
        ),
        (
            "type",
            |r, t| r.message_type = Some(t),
            ReasonClass::InvalidType,
        ),
        (
            "correlation_id",
            |r, t| r.correlation_id = Some(t),
            ReasonClass::InvalidCorrelationId,
        ),
        (
            "content_type",
            |r, t| r.content_type = Some(t),
            ReasonClass::InvalidContentType,
        ),
    ];
    for (column, set, class) in columns {
        let mut row = row();
        set(&mut row, "k".repeat(255));
        let longest = Publication::from_row(row.clone(), &rules());
        assert!(longest.is_ok(), "{column}");
        for text in ["k".repeat(256), "é".repeat(128)] {
            set(&mut row, text);
            let (found, reason) = unfit(&row, &rules());
            assert_eq!(found, class);
            assert!(reason.starts_with(column), "{reason}");
            assert!(
                reason.contains("256 bytes") && reason.contains("255"),
                "{reason}"
            );
        }
    }
}

#[test]
fn the_payload_must_exist_and_be_within_the_limit() {
    let with = |payload| OutboxRow { payload, ..row() };
    let bytes = |n| Body::Bytes(Bytes::from(vec![0; n]));
    assert!(Publication::from_row(with(bytes(0)), &rules()).is_ok());
    assert!(Publication::from_row(with(bytes(1000)), &rules()).is_ok());
    let expected = "payload is 1001 bytes; relay.max_message_size is 1000";
    for body in [bytes(1001), Body::Oversized(1001)] {
        let (class, reason) = unfit(&with(body), &rules());
        assert_eq!((class, reason.as_str()), (ReasonClass::TooLarge, expected));
    }
    assert_eq!(
        unfit(&with(Body::Null), &rules()).0,
        ReasonClass::NullPayload
    );
}

#[test]
fn a_row_outside_the_allowed_exchanges_is_refused() {
    let rules = Rules {
        allowed_exchanges: vec!["orders".into(), "".into()],
        ..rules()
    };
    let with = |exchange: &str| OutboxRow {
        exchange: exchange.into(),
        ..row()
    };
    assert!(Publication::from_row(with(""), &rules).is_ok());
    let (class, reason) = unfit(&with("billing"), &rules);
    assert_eq!(class, ReasonClass::NotAllowed);
    assert!(reason.contains("\"billing\""), "{reason}");
    let nothing = Rules {
        allowed_exchanges: vec![],
        ..rules
    };
    assert_eq!(unfit(&row(), &nothing).0, ReasonClass::NotAllowed);
}

#[test]
fn the_content_header_must_fit_in_one_frame() {
    let with = |bytes: usize| OutboxRow {
        headers: Some(format!("{{\"h\": \"{}\"}}", "x".repeat(bytes))),
        ..row()
    };
    let small = Publication::from_row(with(0), &rules())
        .unwrap()
        .header_len();
    let most = 131_072 - 8 - small;
    let largest = Publication::from_row(with(most), &rules()).unwrap();
    assert_eq!(largest.header_len(), 131_064);
    let (class, reason) = unfit(&with(most + 1), &rules());
    assert_eq!(class, ReasonClass::HeadersTooLarge);
    assert!(
        reason.contains("131065") && reason.contains("131064"),
        "{reason}"
    );
    // The ordering key is a header too.
    let row = OutboxRow {
        ordering_key: Some("k".repeat(200_000)),
        ..row()
    };
    assert_eq!(unfit(&row, &rules()).0, ReasonClass::HeadersTooLarge);
}

#[test]
fn another_users_id_is_refused_where_the_login_is_known() {
    let row = OutboxRow {
        properties: Some(r#"{"user_id": "shop"}"#.into()),
        ..row()
    };
    let (class, reason) = unfit(&row, &rules());
    assert_eq!(class, ReasonClass::InvalidProperties);
    assert!(
        reason.contains("\"shop\"") && reason.contains("\"relay\""),
        "{reason}"
    );
    let unknown = Rules {
        login: None,
        ..rules()
    };
    assert!(Publication::from_row(row.clone(), &unknown).is_ok());
    let own = OutboxRow {
        properties: Some(r#"{"user_id": "relay"}"#.into()),
        ..row
    };
    assert!(Publication::from_row(own, &rules()).is_ok());
}

#[test]
fn a_message_without_identity_is_refused() {
    let row = OutboxRow {
        message_id: String::new(),
        ..row()
    };
    let (class, reason) = unfit(&row, &rules());
    assert_eq!(class, ReasonClass::InvalidMessageId);
    assert!(reason.starts_with("message_id is empty"), "{reason}");
}

#[test]
fn what_only_a_channel_of_its_own_could_send_is_refused() {
    let to = |exchange: &str, key: &str| OutboxRow {
        exchange: exchange.into(),
        routing_key: key.into(),
        ..row()
    };
    let copied = |name: &str| OutboxRow {
        headers: Some(format!(
            r#"{{"{name}": ["q", "amq.rabbitmq.reply-to.g1h.x"]}}"#
        )),
        ..to("", "q")
    };
    let asking = OutboxRow {
        properties: Some(r#"{"reply_to": "amq.rabbitmq.reply-to"}"#.into()),
        ..row()
    };
    let passed_on = OutboxRow {
        properties: Some(r#"{"reply_to": "amq.rabbitmq.reply-to.g1h.x"}"#.into()),
        ..row()
    };
    for (row, class) in [
        (asking, ReasonClass::InvalidProperties),
        (
            to("", "amq.rabbitmq.reply-to"),
            ReasonClass::InvalidRoutingKey,
        ),
        (
            to("", "amq.rabbitmq.reply-to.g1h.x"),
            ReasonClass::InvalidRoutingKey,
        ),
        (copied("CC"), ReasonClass::InvalidHeaders),
        (copied("BCC"), ReasonClass::InvalidHeaders),
        (to("amq.rabbitmq.trace", "q"), ReasonClass::InvalidExchange),
    ] {
        let (found, reason) = unfit(&row, &rules());
        assert_eq!(found, class, "{reason}");
    }
    let elsewhere = to("orders", "amq.rabbitmq.reply-to.g1h.x");
    for row in [passed_on, elsewhere] {
        assert!(Publication::from_row(row.clone(), &rules()).is_ok());
    }
}

#[test]
fn created_at_before_1970_is_refused() {
    let row = OutboxRow {
        created_at: UNIX_EPOCH - Duration::from_nanos(1),
        ..row()
    };
    assert_eq!(unfit(&row, &rules()).0, ReasonClass::InvalidCreatedAt);
}

#[test]
fn debug_output_names_no_content() {
    let row = OutboxRow {
        payload: Body::Bytes(Bytes::from_static(b"canary")),
        headers: Some(r#"{"a": "canary"}"#.into()),
        properties: Some(r#"{"app_id": "canary"}"#.into()),
        ..row()
    };
    let publication = Publication::from_row(row, &rules()).unwrap();
    let text = format!("{publication:?}");
    assert!(
        text.contains("RowId(42)") && text.contains("order.created"),
        "{text}"
    );
    assert!(!text.contains("canary"), "{text}");
}

proptest! {
    #[test]
    fn any_row_is_a_message_that_fits_or_is_refused_with_a_reason(row in any_row()) {
        match Publication::from_row(row.clone(), &rules()) {
            Ok(publication) => {
                prop_assert!(publication.header_len() <= 131_064);
                prop_assert!(publication.payload().len() <= 1000);
                prop_assert!(publication.routing_key().as_str().len() <= 255);
                let id = publication.properties().headers.get(Publication::ID_HEADER);
                prop_assert_eq!(id, Some(&FieldValue::Integer(row.id.0)));
                let again = Publication::from_row(row, &rules());
                prop_assert!(again == Ok(publication), "every attempt sends the same");
            }
            Err(unfit) => {
                prop_assert!(unfit.reason.len() > 10 && unfit.reason.len() < 1500);
                prop_assert!(!unfit.reason.contains(char::is_control), "{}", unfit.reason);
            }
        }
    }
}
