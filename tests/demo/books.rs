//! The billing department's books: one bill for each order, whatever is delivered twice. Kept by
//! the SQL functions of the inbox alone, as a consumer in any language would.

use tokio_postgres::{Client, Error};
use uuid::Uuid;

use crate::support::postgres::connect;
use crate::support::relay::{Settings, run};

/// A session with the billing department's database.
pub struct Books(Client);

impl Books {
    /// Creates the inbox and the table of bills.
    pub async fn create(database: &str) {
        let line = ["migrate", "--inbox", "--database-url", database];
        let (status, output) = run(&Settings::default(), &line).await;
        assert!(status.success(), "{}", output.join("\n"));
        let bills = "CREATE TABLE bill (message_id text, content jsonb)";
        let client = connect(database).await;
        client.batch_execute(bills).await.expect("a new table");
    }

    /// Opens them.
    pub async fn open(database: &str) -> Self {
        Self(connect(database).await)
    }

    /// Writes the bill for a message; `false` if it was written before.
    ///
    /// # Errors
    /// Those of the database; then nothing may be acknowledged.
    pub async fn bill(&mut self, message_id: &str, body: &[u8]) -> Result<bool, Error> {
        let claim =
            "SELECT outcome, owner FROM inbox.claim('billing', $1, '60s', $2, ordering_key => '')";
        let claim = self.0.query_one(claim, &[&message_id, &body]).await?;
        let Some(owner) = claim.get::<_, Option<Uuid>>("owner") else {
            return Ok(false);
        };
        let transaction = self.0.transaction().await?;
        let hold = "SELECT inbox.hold('billing', $1, $2)";
        if !transaction
            .query_one(hold, &[&message_id, &owner])
            .await?
            .get::<_, bool>(0)
        {
            return Ok(false);
        }
        let bill = "INSERT INTO bill VALUES ($1, convert_from($2, 'UTF8')::jsonb)";
        transaction.execute(bill, &[&message_id, &body]).await?;
        let complete = "SELECT inbox.complete('billing', $1, $2)";
        transaction
            .query_one(complete, &[&message_id, &owner])
            .await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// How many bills there are, and how many of them a second time.
    pub async fn count(database: &str) -> (usize, usize) {
        let sql = "SELECT count(*), count(*) - count(DISTINCT message_id) FROM bill";
        let row = connect(database)
            .await
            .query_one(sql, &[])
            .await
            .expect("the bills");
        let number = |column| usize::try_from(row.get::<_, i64>(column)).expect("a count");
        (number(0), number(1))
    }
}
