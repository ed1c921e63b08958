//! Rows of every kind, most of them odd, for property tests; also for those outside the library.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proptest::prelude::*;

use super::{Body, OutboxRow, RowId};

prop_compose! {
    pub fn any_row()(
        id in any::<i64>(),
        texts in prop::collection::vec(any_text(), 4),
        optional in prop::collection::vec(prop::option::of(any_text()), 4),
        payload in prop_oneof![
            1 => Just(Body::Null),
            1 => any::<u64>().prop_map(Body::Oversized),
            20 => prop::collection::vec(any::<u8>(), 0..1050).prop_map(|v| Body::Bytes(v.into())),
        ],
        headers in prop::option::of(any_json()),
        properties in prop::option::of(prop_oneof![1 => any_json(), 9 => any_properties()]),
        seconds in prop_oneof![10 => 0..i32::MAX, 1 => any::<i32>()],
    ) -> OutboxRow {
        let mut texts = texts.into_iter();
        let mut optional = optional.into_iter();
        let mut text = || texts.next().expect("four");
        let mut option = || optional.next().expect("four");
        let offset = Duration::from_secs(u64::from(seconds.unsigned_abs()));
        let created_at: SystemTime =
            if seconds < 0 { UNIX_EPOCH - offset } else { UNIX_EPOCH + offset };
        OutboxRow {
            id: RowId(id),
            message_id: text(),
            exchange: text(),
            routing_key: text(),
            ordering_key: option(),
            payload,
            headers,
            message_type: option(),
            correlation_id: option(),
            content_type: option(),
            properties,
            created_at,
            attempts: 0,
        }
    }
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => "\\PC{0,40}",
        1 => "[a-zé]{120,300}",
        1 => any::<String>(),
    ]
}

fn any_json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        9 => Just("null".to_owned()),
        9 => any::<bool>().prop_map(|b| b.to_string()),
        9 => any::<i64>().prop_map(|i| i.to_string()),
        9 => (-1e300..1e300_f64).prop_map(|f| format!("{f:e}")),
        9 => any_text().prop_map(|t| serde_json::to_string(&t).expect("text")),
        1 => any::<i128>().prop_map(|i| i.to_string()),
        1 => any::<f64>().prop_map(|f| format!("{f:e}")),
        1 => "-?[0-9]{1,400}(\\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?",
    ];
    let tree = leaf.prop_recursive(40, 60, 6, |inner| {
        let name = prop_oneof![
            30 => "[a-z]{0,3}",
            5 => "\\PC{1,20}".prop_map(|name| name.replace(['"', '\\'], "_")),
            1 => "[A-Zé]{100,300}",
            1 => Just("CC".to_owned()),
            1 => Just("x-outbox-id".to_owned()),
        ];
        let entry = (name, inner.clone()).prop_map(|(n, v)| format!("\"{n}\": {v}"));
        prop_oneof![
            prop::collection::vec(inner, 0..6).prop_map(|v| format!("[{}]", v.join(","))),
            prop::collection::vec(entry, 0..6).prop_map(|v| format!("{{{}}}", v.join(","))),
        ]
    });
    prop_oneof![
        20 => tree.prop_filter("an object", |text| text.starts_with('{')),
        1 => any::<String>(),
        1 => (0_usize..140_000).prop_map(|n| format!("{{\"h\": \"{}\"}}", "x".repeat(n))),
    ]
}

fn any_properties() -> impl Strategy<Value = String> {
    let text = || any_text().prop_map(|t| serde_json::to_string(&t).expect("text"));
    let number =
        || prop_oneof![20 => (0..256).prop_map(|n: i32| n.to_string()), 1 => "-?[0-9.]{1,12}"];
    let entry = prop_oneof![
        (
            "(app_id|reply_to|content_encoding|cluster_id|type|user_id)",
            text()
        ),
        ("(priority|expiration|delivery_mode)", number()),
    ];
    let entry = entry.prop_map(|(n, v)| format!("\"{n}\": {v}"));
    prop::collection::vec(entry, 0..4).prop_map(|v| format!("{{{}}}", v.join(",")))
}
