//! The statements that write down what became of rows.
//!
//! Rows are locked in the order of their ids, so that two relays never deadlock. A row that somebody
//! holds is left for later.

use super::ident::{Outbox, quote_literal};
use super::shape::Shape;
use crate::config::OnSent;

/// Ids are looked up one by one, whatever the statistics say. Of a few ids the server would
/// otherwise plan each time anew, which takes four times as long as to mark a row.
pub(super) const PLANNER: &str = "SET enable_seqscan = off; SET enable_bitmapscan = off; \
     SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off; \
     SET plan_cache_mode = force_generic_plan";

/// Rows by id, and by what tells each from another that was given its id later.
fn target(outbox: &Outbox, shape: &Shape) -> String {
    format!(
        "WITH target AS MATERIALIZED (SELECT m.id FROM {} WHERE true{} \
         ORDER BY m.id FOR UPDATE OF m SKIP LOCKED)",
        known(outbox, shape, 2),
        shape.unsent()
    )
}

/// The rows of $1 that still are what they were read as; `prints` is the parameter that says.
fn known(outbox: &Outbox, shape: &Shape, prints: u8) -> String {
    format!(
        "ROWS FROM (pg_catalog.unnest($1::bigint[]), pg_catalog.unnest(${prints}::bigint[])) \
           AS known (known_id, print) \
         JOIN {} AS m ON m.id = known_id AND (print IS NULL OR print = {})",
        outbox.quoted(),
        shape.fingerprint("m"),
    )
}

/// As `target`, but only rows whose partition this relay owns, and goes on owning until all is
/// written. A plain look would not do: a taking that has not committed yet could come between.
fn own_target(outbox: &Outbox, shape: &Shape, token: u8, partitions: u8, prints: u8) -> String {
    format!(
        "WITH held AS MATERIALIZED (SELECT partition FROM {lease} \
           WHERE relation = {relation_name} AND owner = ${token} \
             AND partition = ANY (${partitions}::smallint[]) ORDER BY partition FOR SHARE), \
         own AS MATERIALIZED (SELECT rows.known_id, rows.print FROM \
           ROWS FROM (pg_catalog.unnest($1::bigint[]), \
             pg_catalog.unnest(${partitions}::smallint[]), \
             pg_catalog.unnest(${prints}::bigint[])) AS rows (known_id, partition, print) \
           JOIN held USING (partition)), \
         target AS MATERIALIZED (SELECT m.id FROM own JOIN {relation} AS m \
             ON m.id = known_id AND (print IS NULL OR print = {fingerprint}) \
           WHERE true{unsent} ORDER BY m.id FOR UPDATE OF m SKIP LOCKED)",
        fingerprint = shape.fingerprint("m"),
        unsent = shape.unsent(),
        lease = outbox.sibling("lease"),
        relation_name = quote_literal(outbox.relation()),
        relation = outbox.quoted(),
    )
}

/// All of them in one row: a row for each would cost both sides more than writing it.
const ALL: &str = "SELECT pg_catalog.array_agg(id)";

/// How long marking may wait for a row that somebody holds, in which case nothing of the batch is
/// written. Much less than `deadlock_timeout`: whoever waits for us meanwhile never fails.
const PATIENCE: &str = "10ms";

/// $1 ids, $2 fingerprints. Returns those written; 55P03 if somebody holds one of them. To lock them
/// first without waiting, as `sent_unlocked` does, costs as much again as a third of the marking, and
/// hardly ever is one held.
pub(super) fn sent(outbox: &Outbox, shape: &Shape, on_sent: OnSent) -> String {
    let (relation, unsent) = (outbox.quoted(), shape.unsent());
    // The limit is set before any row is looked at, and ends with the transaction.
    let known = format!(
        "WITH known AS MATERIALIZED (SELECT known_id, print FROM \
           ROWS FROM (pg_catalog.unnest($1::bigint[]), pg_catalog.unnest($2::bigint[])) \
             AS known (known_id, print) \
           WHERE (SELECT pg_catalog.set_config('lock_timeout', '{PATIENCE}', true)) IS NOT NULL \
           ORDER BY known_id)"
    );
    let these = format!(
        "m.id = known_id AND (print IS NULL OR print = {}){unsent}",
        shape.fingerprint("m")
    );
    let written = match on_sent {
        OnSent::Mark => format!(
            "UPDATE {relation} AS m SET sent_at = pg_catalog.clock_timestamp() \
             FROM known WHERE {these} RETURNING m.id"
        ),
        OnSent::Delete => {
            format!("DELETE FROM {relation} AS m USING known WHERE {these} RETURNING m.id")
        }
    };
    format!("{known}, written AS ({written}) {ALL} FROM written")
}

/// The same, but leaves out what somebody holds.
pub(super) fn sent_unlocked(outbox: &Outbox, shape: &Shape, on_sent: OnSent) -> String {
    let (target, relation) = (target(outbox, shape), outbox.quoted());
    match on_sent {
        OnSent::Mark => format!(
            "{target}, written AS (\
               UPDATE {relation} AS m SET sent_at = pg_catalog.clock_timestamp() \
               FROM target WHERE m.id = target.id RETURNING m.id) \
             {ALL} FROM written"
        ),
        OnSent::Delete => format!(
            "{target}, written AS (\
               DELETE FROM {relation} AS m USING target WHERE m.id = target.id RETURNING m.id) \
             {ALL} FROM written"
        ),
    }
}

/// $1 ids, $2 delays in seconds, $3 attempts, $4 errors, $5 this relay, $6 partitions,
/// $7 fingerprints. Returns those written.
pub(super) fn retry(outbox: &Outbox, shape: &Shape) -> String {
    let (target, relation) = (own_target(outbox, shape, 5, 6, 7), outbox.quoted());
    format!(
        "{target}, news AS (SELECT * FROM unnest($1::bigint[], $2::float8[], $3::int[], $4::text[]) \
           AS news (id, delay, attempts, error)), \
         written AS (\
           UPDATE {relation} AS m SET attempts = news.attempts, last_error = news.error, \
             retry_at = pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => news.delay) \
           FROM target JOIN news USING (id) WHERE m.id = target.id RETURNING m.id) \
         {ALL} FROM written"
    )
}

/// $1 ids, $2 delays in seconds, $3 fingerprints. Writes nothing: returns which still wait, and until when, for a
/// relation that has no columns to note it in.
pub(super) fn retry_in_memory(outbox: &Outbox, shape: &Shape) -> String {
    format!(
        "SELECT m.id, pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => news.delay) \
         FROM unnest($1::bigint[], $2::float8[], $3::bigint[]) AS news (id, delay, print) \
         JOIN {} AS m ON m.id = news.id AND (print IS NULL OR print = {}) WHERE true{}",
        outbox.quoted(),
        shape.fingerprint("m"),
        shape.unsent()
    )
}

/// Columns that quarantine has in common with the outbox.
const KEPT: &str = "id, message_id, exchange, routing_key, ordering_key, payload, headers, type, \
     correlation_id, content_type, properties, available_at, created_at, attempts, retry_at, \
     last_error, sent_at, xid";

/// $1 ids, $2 reason classes, $3 reasons, $4 this relay, $5 partitions, $6 attempts, $7 fingerprints.
/// Returns those moved, in one transaction.
pub(super) fn quarantine(outbox: &Outbox, shape: &Shape) -> String {
    let (target, relation) = (own_target(outbox, shape, 4, 5, 7), outbox.quoted());
    let quarantine = outbox.sibling("quarantine");
    let columns = shape.columns();
    let kept = KEPT.replace(" attempts,", " greatest(attempts, counted),");
    format!(
        "{target}, why AS (SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $6::int[]) \
           AS why (id, class, reason, counted)), \
         moved AS (DELETE FROM {relation} AS m USING target WHERE m.id = target.id RETURNING m.*), \
         whole AS (SELECT {columns}, own.payload FROM moved AS own), \
         written AS (\
           INSERT INTO {quarantine} ({KEPT}, reason_class, reason, first_failed_at, last_failed_at) \
           SELECT {kept}, why.class, why.reason, pg_catalog.clock_timestamp(), pg_catalog.clock_timestamp() \
           FROM whole JOIN why USING (id) RETURNING id) \
         {ALL} FROM written"
    )
}

/// Rows whose transaction ids lie ahead of the server's counter, as after a dump and restore
/// into a fresh cluster: they would be news at every read, for ever. Rewrites up to $1 of them
/// and returns their ids. A row of a running or later transaction is not visible here.
pub(super) fn rewrite_xids(outbox: &Outbox) -> String {
    let relation = outbox.quoted();
    format!(
        "WITH ahead AS MATERIALIZED (SELECT id FROM {relation} \
           WHERE sent_at IS NULL AND xid >= '3' \
             AND xid >= pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot()) \
           ORDER BY xid LIMIT $1 FOR UPDATE SKIP LOCKED) \
         UPDATE {relation} AS m SET xid = pg_catalog.pg_current_xact_id() \
         FROM ahead WHERE m.id = ahead.id RETURNING m.id"
    )
}

/// $1 ids, $2 fingerprints. Returns those that are still pending.
pub(super) fn pending(outbox: &Outbox, shape: &Shape) -> String {
    format!(
        "SELECT pg_catalog.array_agg(m.id) FROM {} WHERE true{}",
        known(outbox, shape, 2),
        shape.unsent()
    )
}
