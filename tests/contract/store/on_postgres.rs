//! PostgreSQL as a stage: an outbox in a database of its own, payload `bytea`.

use std::sync::Arc;
use std::time::Duration;

use outbox_relay::config::{DatabaseSection, DatabaseTarget, OnSent, Secret, Successors};
use outbox_relay::message::RowId;
use outbox_relay::store::postgres::ident::Outbox;
use outbox_relay::store::postgres::one_server::OneServer;
use outbox_relay::store::postgres::reader::PgReader;
use outbox_relay::store::postgres::settler::PgSettler;
use outbox_relay::store::postgres::store::PgStore;
use outbox_relay::store::{Announcement, Store};
use tokio_postgres::Client;

use super::{Due, MAX_MESSAGE_SIZE, New, Quarantined, Stage, Stored};
use crate::support::postgres::{Database, database};
use crate::support::relay::{Settings, run};

pub struct OnPostgres {
    pub store: PgStore,
    pub client: Client,
    pub database: Database,
}

impl OnPostgres {
    fn store_of(&self, relay: u128) -> PgStore {
        PgStore {
            token: uuid::Uuid::from_u128(relay),
            last_reader: Arc::default(),
            servers: OneServer::default(),
            ..self.store.clone()
        }
    }

    /// An outbox whose payload is of this type.
    pub async fn with_payload(payload: &str) -> Self {
        let database = database().await;
        let arguments = [
            "migrate",
            "--database-url",
            &database.url,
            "--payload",
            payload,
        ];
        let (status, output) = run(&Settings::default(), &arguments).await;
        assert!(status.success(), "{status}: {}", output.join("\n"));
        let section = DatabaseSection {
            url: Some(Secret::Value(database.url.clone().into())),
            connect_timeout: Duration::from_secs(30),
            ..DatabaseSection::default()
        };
        let store = PgStore {
            target: DatabaseTarget::new(section),
            outbox: Outbox::new("outbox", "message").expect("the usual names"),
            on_sent: OnSent::Mark,
            successors: Successors::Wait,
            statement_timeout: Duration::from_secs(30),
            max_message_size: MAX_MESSAGE_SIZE as u64,
            instance: "test".to_owned(),
            token: uuid::Uuid::from_u128(1),
            last_reader: Arc::default(),
            waits: outbox_relay::store::postgres::Waits::default(),
            servers: OneServer::default(),
            direct: Default::default(),
        };
        let client = database.connect().await;
        Self {
            store,
            client,
            database,
        }
    }

    async fn update(&self, sql: &str, ids: &[RowId]) {
        let ids: Vec<i64> = ids.iter().map(|id| id.0).collect();
        let changed = self.client.execute(sql, &[&ids]).await;
        assert_eq!(changed.expect(sql), ids.len() as u64, "{sql}");
    }
}

impl Stage for OnPostgres {
    type Store = PgStore;
    type Transaction = Client;
    type Lock = Client;

    async fn new() -> Self {
        Self::with_payload("bytea").await
    }

    fn store(&self) -> &PgStore {
        &self.store
    }

    async fn begin(&self) -> Client {
        let client = self.database.connect().await;
        let begin = "BEGIN; SELECT pg_current_xact_id()";
        client.batch_execute(begin).await.expect(begin);
        client
    }

    async fn insert(&self, transaction: &mut Client, new: New) -> RowId {
        let insert = "INSERT INTO outbox.message (routing_key, ordering_key, payload, available_at)
             VALUES ('q', $1, $2, clock_timestamp() + make_interval(secs => $3)) RETURNING id";
        let seconds = new.scheduled.map(|from_now| from_now.as_secs_f64());
        let row = transaction
            .query_one(insert, &[&new.key, &new.payload, &seconds])
            .await;
        RowId(row.expect("an insert").get(0))
    }

    async fn insert_in_savepoint(&self, transaction: &mut Client, new: New) -> RowId {
        transaction
            .batch_execute("SAVEPOINT s")
            .await
            .expect("a savepoint");
        let id = self.insert(transaction, new).await;
        transaction
            .batch_execute("RELEASE s")
            .await
            .expect("its end");
        id
    }

    async fn commit(&self, transaction: Client) {
        transaction.batch_execute("COMMIT").await.expect("a commit");
    }

    async fn roll_back(&self, transaction: Client) {
        transaction
            .batch_execute("ROLLBACK")
            .await
            .expect("a rollback");
    }

    async fn lock(&self, id: RowId) -> Client {
        let client = self.begin().await;
        let lock = "SELECT FROM outbox.message WHERE id = $1 FOR UPDATE";
        client.execute(lock, &[&id.0]).await.expect(lock);
        client
    }

    async fn unlock(&self, lock: Client) {
        self.roll_back(lock).await;
    }

    async fn delete(&self, id: RowId) {
        let delete = "DELETE FROM outbox.message WHERE id = ANY ($1)";
        self.update(delete, &[id]).await;
    }

    async fn fall_due(&self, due: Due, ids: &[RowId]) {
        let column = match due {
            Due::RetryAt => "retry_at",
            Due::AvailableAt => "available_at",
        };
        // One instant for all: that of the transaction.
        let sql = format!("UPDATE outbox.message SET {column} = now() WHERE id = ANY ($1)");
        self.update(&sql, ids).await;
    }

    async fn stored(&self, id: RowId) -> Option<Stored> {
        let select = "SELECT sent_at IS NOT NULL, coalesce(retry_at > clock_timestamp(), false),
                 attempts, last_error FROM outbox.message WHERE id = $1";
        let row = self
            .client
            .query_opt(select, &[&id.0])
            .await
            .expect(select)?;
        Some(Stored {
            sent: row.get(0),
            waits: row.get(1),
            attempts: u32::try_from(row.get::<_, i32>(2)).expect("not negative"),
            last_error: row.get(3),
        })
    }

    async fn quarantined(&self, id: RowId) -> Option<Quarantined> {
        let select = "SELECT reason_class, reason, ordering_key, payload
             FROM outbox.quarantine WHERE id = $1";
        let row = self
            .client
            .query_opt(select, &[&id.0])
            .await
            .expect(select)?;
        Some(Quarantined {
            class: row.get(0),
            reason: row.get(1),
            key: row.get(2),
            payload: row.get(3),
        })
    }

    async fn settler_of(&self, relay: u128) -> PgSettler {
        let store = self.store_of(relay);
        store.open_settler().await.expect("a settler")
    }

    async fn reader_of(&self, relay: u128) -> PgReader {
        let store = self.store_of(relay);
        store.open_reader().await.expect("a reader")
    }

    async fn alive(&self) -> Vec<Announcement> {
        let select = "SELECT instance, name, version, ready, waits_for, database_state, \
             database_reason, broker_state, broker_reason, partitions, \
             EXTRACT(epoch FROM clock_timestamp() - last_confirm_at)::float8, \
             EXTRACT(epoch FROM lease_for)::float8, held_back \
             FROM outbox.instance ORDER BY instance";
        let rows = self.client.query(select, &[]).await.expect(select);
        let read = |row: &tokio_postgres::Row| Announcement {
            instance: row.get(0),
            name: row.get(1),
            version: row.get(2),
            ready: row.get(3),
            waits_for: row.get(4),
            database: (row.get(5), row.get(6)),
            broker: (row.get(7), row.get(8)),
            partitions: row.get::<_, i16>(9).unsigned_abs(),
            last_confirm: row.get::<_, Option<f64>>(10).map(Duration::from_secs_f64),
            lease: Duration::from_secs_f64(row.get(11)),
            held_back: row
                .get::<_, Option<serde_json::Value>>(12)
                .map(|told| serde_json::from_value(told).expect("understood"))
                .unwrap_or_default(),
        };
        rows.iter().map(read).collect()
    }
}
