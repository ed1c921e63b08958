//! Transaction ids that a dump and restore left ahead of the server's.

use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};
use tracing::info;

use super::ident::Outbox;
use super::reader::within;
use super::settle_sql;
use crate::store::StoreError;

/// Rows rewritten by one statement.
const REWRITE: i64 = 1000;

/// Gives rows from a restored dump transaction ids of this server.
pub(super) async fn rewrite_xids(
    client: &Client,
    outbox: &Outbox,
    deadline: Duration,
) -> Result<(), StoreError> {
    let sql = settle_sql::rewrite_xids(outbox);
    let mut rewritten = 0;
    loop {
        let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&REWRITE, Type::INT8)];
        let rows = client.query_typed(&sql, &parameters);
        let rows = within(deadline, "rewrite transaction ids", rows)
            .await?
            .len();
        rewritten += rows;
        if rows == 0 {
            break;
        }
    }
    if rewritten > 0 {
        info!(
            rows = rewritten,
            "rewrote transaction ids that a restore had left ahead of the server's"
        );
    }
    Ok(())
}
