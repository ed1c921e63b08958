//! Turns our own message types into lapin's, and reads back the id of a returned message.
//!
//! Cannot fail: everything was validated when the publication was made.

use lapin::BasicProperties;
use lapin::message::BasicReturnMessage;
use lapin::types::{AMQPValue, FieldArray, FieldTable as LapinTable, ShortString};

use super::judge::Return;
use crate::message::{FieldTable, FieldValue, Properties, Publication, RowId, ShortText};

/// lapin panics on a text of more than 255 bytes, which a [`ShortText`] never has.
pub(super) fn short(text: &ShortText) -> ShortString {
    ShortString::from(text.as_str())
}

/// The properties of a publication, headers included.
pub(super) fn properties(properties: &Properties) -> BasicProperties {
    let mut basic = BasicProperties::default()
        .with_delivery_mode(properties.delivery_mode.code())
        .with_headers(table(&properties.headers));
    if let Some(priority) = properties.priority {
        basic = basic.with_priority(priority);
    }
    if let Some(timestamp) = properties.timestamp {
        basic = basic.with_timestamp(timestamp);
    }
    type Setter = fn(BasicProperties, ShortString) -> BasicProperties;
    let texts: [(&Option<ShortText>, Setter); 10] = [
        (&properties.content_type, BasicProperties::with_content_type),
        (
            &properties.content_encoding,
            BasicProperties::with_content_encoding,
        ),
        (
            &properties.correlation_id,
            BasicProperties::with_correlation_id,
        ),
        (&properties.reply_to, BasicProperties::with_reply_to),
        (&properties.expiration, BasicProperties::with_expiration),
        (&properties.message_id, BasicProperties::with_message_id),
        (&properties.message_type, BasicProperties::with_type),
        (&properties.user_id, BasicProperties::with_user_id),
        (&properties.app_id, BasicProperties::with_app_id),
        (&properties.cluster_id, BasicProperties::with_cluster_id),
    ];
    for (text, set) in texts {
        if let Some(text) = text {
            basic = set(basic, short(text));
        }
    }
    basic
}

fn table(table: &FieldTable) -> LapinTable {
    let mut encoded = LapinTable::default();
    for (name, field) in table.iter() {
        encoded.insert(short(name), value(field));
    }
    encoded
}

fn value(field: &FieldValue) -> AMQPValue {
    match field {
        FieldValue::Void => AMQPValue::Void,
        FieldValue::Bool(bool) => AMQPValue::Boolean(*bool),
        FieldValue::Integer(integer) => AMQPValue::LongLongInt(*integer),
        FieldValue::Float(float) => AMQPValue::Double(*float),
        FieldValue::Text(text) => AMQPValue::LongString(text.as_str().into()),
        FieldValue::List(items) => {
            let items: Vec<_> = items.iter().map(value).collect();
            AMQPValue::FieldArray(FieldArray::from(items))
        }
        FieldValue::Table(inner) => AMQPValue::FieldTable(table(inner)),
    }
}

/// What matters of a returned message: whose it is, and why it came back.
pub(super) fn returned(message: &BasicReturnMessage) -> Return {
    let headers = message.delivery.properties.headers().as_ref();
    let id = headers.and_then(|table| match table.inner().get(Publication::ID_HEADER) {
        Some(AMQPValue::LongLongInt(id)) => Some(RowId(*id)),
        Some(_) | None => None,
    });
    Return {
        id,
        code: message.reply_code,
        text: message.reply_text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use amq_protocol::frame::{AMQPContentHeader, AMQPFrame, gen_frame, parsing::parse_frame};
    use proptest::prelude::*;

    use super::*;
    use crate::message::{any_row, rules};

    fn encoded(publication: &Publication) -> Vec<u8> {
        let header = AMQPContentHeader {
            class_id: 60,
            body_size: publication.payload().len() as u64,
            properties: properties(publication.properties()),
        };
        let mut buffer = vec![0; 2 * 131_072];
        let written = gen_frame(&AMQPFrame::Header(1, header))(Cursor::new(&mut buffer[..]).into());
        let (_, length) = written.unwrap().into_inner();
        buffer.truncate(usize::try_from(length).unwrap());
        buffer
    }

    proptest! {
        #[test]
        fn every_publication_encodes_to_the_size_it_was_judged_by(row in any_row()) {
            let Ok(publication) = Publication::from_row(row, &rules()) else {
                return Ok(());
            };
            let frame = encoded(&publication);
            prop_assert_eq!(frame.len() - 8, publication.header_len());
            let (rest, read) = parse_frame(&frame[..]).unwrap();
            prop_assert!(rest.is_empty());
            let AMQPFrame::Header(1, header) = read else {
                panic!("{read:?}")
            };
            prop_assert_eq!(header.properties, properties(publication.properties()));
        }
    }
}
