//! The shop: places orders from several connections. Each order is one transaction with one
//! row in `orders` and one in the outbox; some are rolled back at the last moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tokio_postgres::Client;

use crate::support::PATIENCE;
use crate::support::checker::Ledger;
use crate::support::postgres::connect;

/// Orders placed, rolled back ones included.
pub const ORDERS: usize = 2_000;
/// Every so-manieth order is rolled back.
const ROLLED_BACK: usize = 20;
/// Tills: connections that place orders at the same time.
const TILLS: usize = 8;
/// Customers: their orders are to arrive in the order of their commits.
pub const CUSTOMERS: usize = 40;
/// Each till rings so often, so that the day lasts about 16 seconds.
const PACE: Duration = Duration::from_millis(64);

const TABLES: &str = "
    CREATE TABLE customer (id int PRIMARY KEY, orders int NOT NULL DEFAULT 0);
    CREATE TABLE orders (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        customer int NOT NULL REFERENCES customer,
        cents int NOT NULL
    );
    INSERT INTO customer SELECT generate_series(0, 39);";

const OUTBOX: &str = "
    INSERT INTO outbox.message (exchange, routing_key, ordering_key, type, payload)
    VALUES ('shop', 'order.placed', $1, 'order.placed',
            json_build_object('order', $2::bigint, 'customer', $3::int, 'cents', $4::int))
    RETURNING id, message_id";

/// A day in the shop.
pub struct Shop {
    placed: AtomicUsize,
    count: watch::Sender<usize>,
}

impl Shop {
    /// Creates the shop's own tables.
    pub async fn open(database: &str) {
        let client = connect(database).await;
        client
            .batch_execute(TABLES)
            .await
            .expect("the shop's tables");
    }

    /// Opens all tills.
    pub fn start(database: &str, ledger: &Arc<Ledger>) -> Arc<Self> {
        let shop = Arc::new(Self {
            placed: AtomicUsize::new(0),
            count: watch::Sender::new(0),
        });
        for _ in 0..TILLS {
            let (shop, ledger) = (Arc::clone(&shop), Arc::clone(ledger));
            let database = database.to_owned();
            tokio::spawn(async move {
                let mut client = connect(&database).await;
                let mut pace = interval(PACE);
                pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
                loop {
                    pace.tick().await;
                    let number = shop.placed.fetch_add(1, Ordering::Relaxed);
                    if number >= ORDERS {
                        return;
                    }
                    if let Err(error) = place(&mut client, number, &ledger).await {
                        panic!("the shop could not place order {number}: {error:?}");
                    }
                    shop.count.send_modify(|count| *count += 1);
                }
            });
        }
        shop
    }

    /// Orders placed so far.
    pub fn placed(&self) -> usize {
        *self.count.borrow()
    }

    /// Waits until so many orders have been placed.
    pub async fn reaches(&self, orders: usize) {
        let mut count = self.count.subscribe();
        let reached = count.wait_for(|count| *count >= orders);
        tokio::time::timeout(PATIENCE, reached)
            .await
            .expect("the shop goes on whatever happens to relay and broker")
            .expect("the shop outlives its tills");
    }

    /// Waits until all orders have been placed.
    pub async fn closed(&self) {
        self.reaches(ORDERS).await;
    }
}

/// Places one order: customer's lock, order, outbox row, commit or rollback.
async fn place(
    client: &mut Client,
    number: usize,
    ledger: &Ledger,
) -> Result<(), tokio_postgres::Error> {
    let customer = i32::try_from(number * 7 % CUSTOMERS).expect("small");
    let cents = i32::try_from(100 + number % 9_900).expect("small");
    let key = format!("customer-{customer}");
    let transaction = client.transaction().await?;
    // The customer's row lock serialises the customer's orders; the outbox row comes after it.
    let count = "UPDATE customer SET orders = orders + 1 WHERE id = $1";
    transaction.execute(count, &[&customer]).await?;
    let order = "INSERT INTO orders (customer, cents) VALUES ($1, $2) RETURNING id";
    let order: i64 = transaction
        .query_one(order, &[&customer, &cents])
        .await?
        .get(0);
    let row = transaction
        .query_one(OUTBOX, &[&key, &order, &customer, &cents])
        .await?;
    let (id, message_id): (i64, String) = (row.get(0), row.get(1));
    if number % ROLLED_BACK == ROLLED_BACK / 2 {
        transaction.rollback().await?;
        ledger.rolled_back(&message_id);
    } else {
        transaction.commit().await?;
        ledger.committed(&message_id, Some((&key, id)));
    }
    Ok(())
}
