//! A request to read, as parameters of the statement.

use std::time::SystemTime;

use tokio_postgres::types::ToSql;

use super::values::Xid8;
use crate::relay::rules::{Partition, PartitionSet, ReadRequest};
use crate::store::StoreError;
use crate::store::error::Fault;

/// A request in PostgreSQL's types.
pub(super) struct Parameters {
    xmax: Xid8,
    running: Vec<Xid8>,
    news_up_to: i64,
    owned: String,
    limit: i64,
    page_after: i64,
    page_rows: i64,
    retry: (Option<SystemTime>, i64),
    available: (Option<SystemTime>, i64),
}

impl Parameters {
    pub(super) fn of(request: &ReadRequest) -> Result<Self, StoreError> {
        let count = |rows: usize| {
            let fault = || Fault::new("look for rows", "relay.batch_size is too large");
            i64::try_from(rows).map_err(|_| StoreError::Settings(fault()))
        };
        let (rows, page_rows) = (count(request.limit)?, count(request.page_limit)?);
        // A first read has no news and nothing that fell due since.
        let none = (u64::MAX >> 1, Vec::new(), (None, 0), (None, 0));
        let (xmax, running, retry, available) = match &request.since {
            None => none,
            Some(since) => (
                since.snapshot.xmax,
                since
                    .snapshot
                    .in_progress
                    .iter()
                    .copied()
                    .map(Xid8)
                    .collect(),
                (Some(since.retry.at), since.retry.id),
                (Some(since.available.at), since.available.id),
            ),
        };
        Ok(Self {
            xmax: Xid8(xmax),
            running,
            news_up_to: request.news_up_to,
            owned: bits(&request.partitions),
            limit: rows + 1,
            page_after: request.page_after.unwrap_or(i64::MAX),
            page_rows,
            retry,
            available,
        })
    }

    /// In the order of the statement.
    pub(super) fn list(&self) -> [&(dyn ToSql + Sync); 11] {
        [
            &self.xmax,
            &self.running,
            &self.news_up_to,
            &self.owned,
            &self.limit,
            &self.page_after,
            &self.page_rows,
            &self.retry.0,
            &self.retry.1,
            &self.available.0,
            &self.available.1,
        ]
    }
}

/// `bit(256)` in text: bit n is partition n.
fn bits(partitions: &PartitionSet) -> String {
    let bit = |no| {
        if partitions.contains(Partition(no)) {
            '1'
        } else {
            '0'
        }
    };
    (0..=u8::MAX).map(bit).collect()
}
