//! The statements that look for rows.
//!
//! One statement answers a whole read, so that news, page, due rows and the snapshot itself are
//! of one snapshot. Each part states a predicate that only its own index has, so that no other
//! plan is possible (`migrations/0003_message_indexes.sql`); the conditions on the id are
//! written so that no index on the id can serve them where the part is not meant to walk by id.

use tokio_postgres::types::Type;

use super::ident::{Outbox, quote_literal};
use super::shape::Shape;
use crate::config::Successors;

/// Bodies up to this many bytes, as stored, are brought along by a read. Beyond it PostgreSQL
/// keeps a value out of line (TOAST_TUPLE_TARGET, 2 kB), where fetching it costs more.
pub(super) const INLINE_LIMIT: i32 = 2000;

/// Parts of a read, as numbered by the statement.
pub(super) const HEAD: i32 = 0;
pub(super) const NEWS: i32 = 1;
pub(super) const PAGE: i32 = 2;
pub(super) const DUE_RETRY: i32 = 3;
pub(super) const DUE_AVAILABLE: i32 = 4;

/// The first parameter of the waits in memory.
const WAITS_FROM: usize = 12;

/// Times that nobody means, in whose bounds arithmetic is possible: a row may hold `infinity`.
const BEGINNING: &str = "'0001-01-01'::timestamptz";
const HORIZON: &str = "'9999-01-01'::timestamptz";

/// Hash of the ordering key, or of the id where there is none; its low byte is the partition.
const HASH: &str = "CASE WHEN ordering_key IS NULL THEN pg_catalog.hashint8extended(id, 0) \
     ELSE pg_catalog.hashtextextended(ordering_key, 0) END";

/// What tells a row from another that has its id.
const FINGERPRINT: &str = "pg_catalog.hashtextextended(message_id, 0)";

/// The row may be sent now, and by this relay. The owned partitions are read from their text once,
/// not for each row.
const OURS: &str = "(available_at IS NULL OR available_at <= pg_catalog.statement_timestamp()) \
     AND pg_catalog.get_bit((SELECT $4::text::bit(256)), (hash & 255)::int) = 1";

/// Columns that every part brings.
fn columns() -> String {
    format!(
        "id, message_id, exchange, routing_key, ordering_key, headers, type, correlation_id, \
         content_type, properties, created_at, attempts, retry_at, available_at, payload, \
         {HASH} AS hash"
    )
}

/// Parameters: $1 xid8 xmax and $2 xid8[] xip of the last snapshot, $3 news up to this id,
/// $4 bit(256) owned partitions, $5 rows of news and of each kind of due rows, plus one,
/// $6 page after this id, $7 rows of the page, $8 and $9 retry mark, $10 and $11 available mark;
/// where waits are kept in memory, they are the next three.
pub(super) fn read(outbox: &Outbox, shape: &Shape, successors: Successors) -> String {
    let held = held(outbox, successors);
    let relation = shape.with_waits(outbox, WAITS_FROM);
    let (news, page) = (news(&relation), page(&relation));
    let head = head(outbox, &relation);
    let (retry, available) = (
        due(&relation, "retry_at", 8, 9),
        due(&relation, "available_at", 10, 11),
    );
    format!(
        "SELECT part, id, message_id, exchange, routing_key, ordering_key, headers::text, type, \
           correlation_id, content_type, properties::text, \
           LEAST(GREATEST(created_at, {BEGINNING}), {HORIZON}), attempts, hash, \
           CASE WHEN part = {DUE_RETRY} THEN retry_at WHEN part = {DUE_AVAILABLE} THEN available_at END, \
           part <= {PAGE} OR ({OURS}), \
           CASE WHEN retry_at > pg_catalog.statement_timestamp() THEN \
             pg_catalog.date_part('epoch', LEAST(retry_at, {HORIZON}) - pg_catalog.statement_timestamp()) END, \
           pg_catalog.date_part('epoch', pg_catalog.statement_timestamp() \
             - LEAST(GREATEST(created_at, available_at, {BEGINNING}), {HORIZON})), \
           stored, \
           CASE WHEN stored <= {INLINE_LIMIT} THEN payload END, {held}, {FINGERPRINT} \
         FROM (\
           SELECT *, pg_catalog.pg_column_size(payload) AS stored FROM (\
             {head} \
             UNION ALL (SELECT {NEWS}, news.* FROM ({news}) AS news) \
             UNION ALL (SELECT {PAGE}, page.* FROM ({page}) AS page) \
             UNION ALL (SELECT {DUE_RETRY}, due.* FROM ({retry}) AS due) \
             UNION ALL (SELECT {DUE_AVAILABLE}, due.* FROM ({available}) AS due)\
           ) AS parts\
         ) AS sized"
    )
}

/// For how many seconds an earlier row of the key has been in quarantine, where that matters. Asked
/// of rows that were found alone: a poll that finds nothing does not look.
fn held(outbox: &Outbox, successors: Successors) -> String {
    match successors {
        Successors::Continue => "NULL::float8".to_owned(),
        Successors::Wait => format!(
            "CASE WHEN ordering_key IS NOT NULL THEN (\
               SELECT pg_catalog.date_part('epoch', pg_catalog.statement_timestamp() - q.quarantined_at) \
               FROM {} AS q \
               WHERE pg_catalog.hashtextextended(q.ordering_key, 0) = sized.hash AND q.id < sized.id \
               ORDER BY q.id DESC LIMIT 1) END",
            outbox.sibling("quarantine")
        ),
    }
}

/// The snapshot, the server, what is paused and where a full page ends, in the columns of a row.
fn head(outbox: &Outbox, relation: &str) -> String {
    let pending = pending(relation);
    format!(
        "SELECT {HEAD} AS part, \
           CASE WHEN $7 > 0::bigint THEN (SELECT id {pending} OFFSET $7 - 1::bigint LIMIT 1) END AS id, \
           pg_catalog.pg_current_snapshot()::text AS message_id, \
           pg_catalog.pg_is_in_recovery()::text AS exchange, \
           pg_catalog.pg_postmaster_start_time()::text AS routing_key, \
           NULL::text AS ordering_key, \
           (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(exchange, by_whom, reason)) \
            FROM {} WHERE until IS NULL OR until > pg_catalog.statement_timestamp()) AS headers, \
           EXISTS (SELECT FROM {} WHERE owner IS NULL AND relation = {})::text AS type, \
           NULL::text AS correlation_id, NULL::text AS content_type, NULL::jsonb AS properties, \
           pg_catalog.statement_timestamp() AS created_at, NULL::int AS attempts, \
           NULL::timestamptz AS retry_at, NULL::timestamptz AS available_at, \
           NULL AS payload, NULL::bigint AS hash",
        outbox.sibling("pause"),
        outbox.sibling("lease"),
        quote_literal(outbox.relation())
    )
}

/// Rows whose transactions the last snapshot did not see as over.
fn news(relation: &str) -> String {
    let columns = columns();
    format!(
        "SELECT * FROM (\
           (SELECT {columns} FROM {relation} AS m \
            WHERE sent_at IS NULL AND xid >= '3' AND xid >= $1 ORDER BY xid) \
           UNION ALL \
           (SELECT past.* FROM pg_catalog.unnest($2::xid8[]) AS running (xid) CROSS JOIN LATERAL (\
              SELECT {columns} FROM {relation} AS m \
              WHERE sent_at IS NULL AND m.xid >= '3' AND m.xid >= running.xid AND m.xid <= running.xid \
              ORDER BY m.xid) AS past)\
         ) AS news \
         WHERE id + 0 <= $3 AND {OURS} ORDER BY id LIMIT $5"
    )
}

/// What the page walks over.
fn pending(relation: &str) -> String {
    format!("FROM {relation} AS m WHERE sent_at IS NULL AND id > 0 AND id > $6 ORDER BY id")
}

/// Rows that are scheduled, or that another relay sends, are walked over and not brought.
fn page(relation: &str) -> String {
    let (columns, pending) = (columns(), pending(relation));
    format!("SELECT * FROM (SELECT {columns} {pending} LIMIT $7) AS walked WHERE {OURS}")
}

/// Rows whose time, in `column`, came since the mark in parameters `at` and `id`.
fn due(relation: &str, column: &str, at: u8, id: u8) -> String {
    let columns = columns();
    format!(
        "SELECT {columns} FROM {relation} AS m \
         WHERE sent_at IS NULL AND {column} IS NOT NULL \
           AND ({column}, id) > (LEAST(${at}, pg_catalog.statement_timestamp()), ${id}) \
           AND {column} <= pg_catalog.statement_timestamp() \
         ORDER BY {column}, id LIMIT $5"
    )
}

/// Bodies: $1 ids, in the order wanted; $2 the largest allowed; $3 room for all of them; $4 what
/// tells each from another that was given its id later. The
/// true size of each, by the function `length` of the payload, is measured once, here, and told
/// even where the body is not. The first that may be brought is, whatever the room.
pub(super) fn fetch(outbox: &Outbox, shape: &Shape, length: &str) -> String {
    let relation = shape.readable(outbox);
    format!(
        "SELECT id, size, payload IS NULL, \
           CASE WHEN size <= $2 AND (total = size OR total <= $3) THEN payload END \
         FROM (\
           SELECT id, payload, size, place, (sum(CASE WHEN size <= $2 THEN size ELSE 0 END) \
             OVER (ORDER BY place))::bigint AS total \
           FROM (\
             SELECT m.id, m.payload, wanted.place, {length}::bigint AS size \
             FROM ROWS FROM (pg_catalog.unnest($1::bigint[]), pg_catalog.unnest($4::bigint[])) \
               WITH ORDINALITY AS wanted (id, print, place) \
             JOIN {relation} AS m ON m.id = wanted.id AND (print IS NULL OR print = {FINGERPRINT}) \
             WHERE m.sent_at IS NULL\
           ) AS measured\
         ) AS summed ORDER BY place"
    )
}

/// How many bytes a payload of this type has when it is published.
pub(super) fn length(payload: &Type) -> &'static str {
    // The text of a bytea is twice as long as what it stands for.
    if *payload == Type::BYTEA {
        "pg_catalog.octet_length(m.payload)"
    } else {
        "pg_catalog.octet_length(m.payload::text)"
    }
}
