//! PostgreSQL values that the client crate has no types for.

use bytes::{BufMut, Bytes, BytesMut};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

type Failure = Box<dyn std::error::Error + Sync + Send>;

/// `xid8`: a transaction id that does not wrap around. Sent in binary as 64 bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Xid8(pub(super) u64);

impl ToSql for Xid8 {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Failure> {
        out.put_u64(self.0);
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::XID8
    }

    to_sql_checked!();
}

/// A payload column, byte for byte as PostgreSQL stores it.
pub(super) struct PayloadBytes(pub(super) Bytes);

/// In binary `jsonb` is its text behind this version number (PostgreSQL source, jsonb_send).
const JSONB_VERSION: u8 = 1;

impl<'a> FromSql<'a> for PayloadBytes {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, Failure> {
        if *ty != Type::JSONB {
            return Ok(Self(Bytes::copy_from_slice(raw)));
        }
        match raw.split_first() {
            Some((&JSONB_VERSION, text)) => Ok(Self(Bytes::copy_from_slice(text))),
            Some(_) | None => Err("unknown version of jsonb".into()),
        }
    }

    fn accepts(ty: &Type) -> bool {
        content_type(ty).is_some()
    }
}

/// The content type of a message that names none, by the SQL type of its payload; `None` if
/// that type cannot be published.
pub(super) fn content_type(ty: &Type) -> Option<&'static str> {
    match *ty {
        Type::JSON | Type::JSONB => Some("application/json"),
        Type::TEXT | Type::VARCHAR | Type::BPCHAR => Some("text/plain; charset=utf-8"),
        Type::BYTEA => Some("application/octet-stream"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jsonb_loses_its_version_number_and_nothing_else() {
        let PayloadBytes(bytes) = PayloadBytes::from_sql(&Type::JSONB, b"\x01{\"a\": 1}").unwrap();
        assert_eq!(&bytes[..], b"{\"a\": 1}");
        assert!(PayloadBytes::from_sql(&Type::JSONB, b"\x02{}").is_err());
        assert!(PayloadBytes::from_sql(&Type::JSONB, b"").is_err());
    }

    #[test]
    fn json_text_and_bytea_are_taken_as_they_are() {
        for ty in [Type::JSON, Type::TEXT, Type::BYTEA] {
            let PayloadBytes(bytes) = PayloadBytes::from_sql(&ty, b"\x01 \xff").unwrap();
            assert_eq!(&bytes[..], b"\x01 \xff");
        }
    }
}
