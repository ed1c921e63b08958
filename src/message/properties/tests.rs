use super::*;

fn read(text: &str) -> Result<Properties, Unfit> {
    let mut properties = Properties::default();
    properties.read(text).map(|()| properties)
}

fn reason(text: &str) -> String {
    let unfit = read(text).unwrap_err();
    assert_eq!(unfit.class, ReasonClass::InvalidProperties);
    unfit.reason
}

fn short(text: &str) -> Option<ShortText> {
    Some(ShortText::new(text).unwrap())
}

#[test]
fn every_known_name_is_taken() {
    let properties = read(
        r#"{"app_id": "shop", "cluster_id": "c", "content_encoding": "gzip", "priority": 255,
            "delivery_mode": 1, "expiration": "060000", "reply_to": "answers", "type": "t",
            "user_id": "relay", "correlation_id": "k", "content_type": "text/plain"}"#,
    );
    let expected = Properties {
        content_type: short("text/plain"),
        content_encoding: short("gzip"),
        headers: FieldTable::default(),
        delivery_mode: DeliveryMode::Transient,
        priority: Some(255),
        correlation_id: short("k"),
        reply_to: short("answers"),
        expiration: short("60000"),
        message_id: None,
        timestamp: None,
        message_type: short("t"),
        user_id: short("relay"),
        app_id: short("shop"),
        cluster_id: short("c"),
    };
    assert_eq!(properties.unwrap(), expected);
    for name in NAMES {
        assert!(read(&format!("{{\"{name}\": null}}")).is_ok(), "{name}");
    }
    assert_eq!(read("null").unwrap(), Properties::default());
}

#[test]
fn an_unknown_name_is_answered_with_the_nearest() {
    for (name, known) in [
        ("priorty", "priority"),
        ("Expiration", "expiration"),
        ("app-id", "app_id"),
        ("deliveryMode", "delivery_mode"),
        ("replyTo", "reply_to"),
    ] {
        let reason = reason(&format!("{{\"{name}\": 1}}"));
        assert!(
            reason.ends_with(&format!("did you mean {known}?")),
            "{reason}"
        );
    }
    let reason = reason("{\"zzz\": 1}");
    assert!(reason.contains("known are app_id, cluster_id"), "{reason}");
}

#[test]
fn expiration_is_whole_milliseconds() {
    assert_eq!(read(r#"{"expiration": 0}"#).unwrap().expiration, short("0"));
    let most = read(r#"{"expiration": "4294967295"}"#).unwrap();
    assert_eq!(most.expiration, short("4294967295"));
    for value in [
        "\"soon\"",
        "\"\"",
        "\"+5\"",
        "\" 5\"",
        "\"5s\"",
        "-1",
        "1.5",
        "1e3",
        "4294967296",
        "true",
    ] {
        let reason = reason(&format!("{{\"expiration\": {value}}}"));
        assert!(reason.contains("milliseconds in digits"), "{reason}");
    }
    let text = reason(&format!("{{\"expiration\": \"{}\"}}", "9".repeat(1000)));
    assert!(text.len() < 200, "{text}");
}

#[test]
fn numbers_are_held_to_their_range() {
    for value in ["256", "-1", "1.0", "\"5\"", "[]"] {
        let reason = reason(&format!("{{\"priority\": {value}}}"));
        assert!(reason.contains("an integer from 0 to 255"), "{reason}");
    }
    for value in ["0", "3", "\"2\"", "2.0", "{}"] {
        let reason = reason(&format!("{{\"delivery_mode\": {value}}}"));
        assert!(
            reason.contains("1 (transient) or 2 (persistent)"),
            "{reason}"
        );
    }
}

#[test]
fn a_property_with_a_column_is_set_once() {
    let mut properties = Properties {
        message_type: short("from the column"),
        ..Properties::default()
    };
    let unfit = properties.read(r#"{"type": "other"}"#).unwrap_err();
    assert_eq!(unfit.reason, "property type is set by the column type too");
    assert_eq!(
        reason(r#"{"timestamp": 1}"#),
        "property timestamp comes from the column created_at"
    );
    assert_eq!(
        reason(r#"{"headers": {}}"#),
        "property headers comes from the column headers"
    );
}

#[test]
fn texts_are_short_strings() {
    let reason = reason(&format!("{{\"app_id\": \"{}\"}}", "é".repeat(128)));
    assert_eq!(
        reason,
        "property app_id is 256 bytes, and an AMQP short string holds at most 255"
    );
}
