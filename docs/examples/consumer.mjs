// A consumer in Node.js that uses nothing but the SQL functions of schema inbox and an AMQP client.
//
//   DATABASE_URL=postgres://… AMQP_URL=amqp://… QUEUE=billing node consumer.mjs
//
// Its handler is transactional: effect and result commit together with the entry. It writes into
//
//   CREATE TABLE booking (message_id text, amount bigint)

import amqp from "amqplib";
import pg from "pg";

const { QUEUE, DATABASE_URL, AMQP_URL, CONSUMER = "billing", LEASE = "60s" } = process.env;
const MAX_ATTEMPTS = 5;

class Permanent extends Error {}
class Later extends Error {
  constructor(reason, seconds = null) {
    super(reason);
    this.seconds = seconds;
  }
}

// The application's own part: whatever it does in the transaction happens once.
async function handle(transaction, message) {
  let order;
  try {
    order = JSON.parse(message.payload.toString());
  } catch (error) {
    throw new Permanent(`not an order: ${error.message}`);
  }
  if (!Number.isInteger(order.amount)) throw new Permanent("an order without an amount");
  if (order.wait && message.attempt === 1) throw new Later("asked to come back", order.wait);
  await transaction.query("INSERT INTO booking (message_id, amount) VALUES ($1, $2)", [
    message.message_id,
    order.amount,
  ]);
  return { booked: order.amount };
}

const one = async (client, sql, parameters) =>
  Object.values((await client.query(sql, parameters)).rows[0])[0];

// Runs the handler on a claimed message and says how it ended.
async function work(pool, message) {
  const key = [CONSUMER, message.message_id, message.owner];
  const transaction = await pool.connect();
  let broken;
  try {
    await transaction.query("BEGIN");
    if (await one(transaction, "SELECT inbox.hold($1, $2, $3)", key)) {
      const result = JSON.stringify(await handle(transaction, message));
      const stands = await one(transaction, "SELECT inbox.complete($1, $2, $3, $4)", [...key, result]);
      await transaction.query(stands ? "COMMIT" : "ROLLBACK");
    } else {
      await transaction.query("ROLLBACK"); // Another owner has it now.
    }
  } catch (failure) {
    // A session that cannot even roll back is thrown away.
    await transaction.query("ROLLBACK").catch((error) => (broken = error));
    if (failure instanceof Permanent) {
      await one(pool, "SELECT inbox.fail($1, $2, $3, 'permanent', $4)", [...key, failure.message]);
    } else if (broken) {
      throw failure; // The database is away; the entry's lease will end.
    } else {
      const sql = "SELECT inbox.retry($1, $2, $3, $4, make_interval(secs => $5))";
      await one(pool, sql, [...key, failure.message, failure.seconds ?? null]);
    }
  } finally {
    transaction.release(broken);
  }
}

// Retries whose time came, entries whose turn came, and those whose owner died.
async function workOffDue(pool) {
  const due = await pool.query("SELECT * FROM inbox.due($1, 10, $2)", [CONSUMER, LEASE]);
  for (const message of due.rows) await work(pool, message);
}

// Claims what was delivered, and works on it if it is ours. Afterwards it may be acked.
async function receive(pool, { content, fields, properties }) {
  const headers = JSON.stringify(properties.headers ?? {});
  if (!properties.messageId) {
    // Without an identity nobody can work on it: dead, once.
    await pool.query(
      `SELECT inbox.fail($1, i.id, c.owner, 'malformed', 'the property message-id is missing')
       FROM (SELECT 'invalid:' || encode(sha256($3), 'hex')) AS i (id),
            LATERAL inbox.claim($1, i.id, $2, $3, $4) AS c WHERE c.owner IS NOT NULL`,
      [CONSUMER, LEASE, content, headers],
    );
    return;
  }
  const { type, contentType } = properties;
  const claim = await pool.query(
    "SELECT * FROM inbox.claim($1, $2, $3, $4, $5, $6, $7, $8, max_attempts => $9)",
    [
      CONSUMER,
      properties.messageId,
      LEASE,
      content,
      headers,
      JSON.stringify({ type, content_type: contentType }),
      fields.exchange,
      fields.routingKey,
      MAX_ATTEMPTS,
    ],
  );
  // duplicate, busy, waiting, dead: it is stored, and needs nothing more of us.
  if (["claimed", "taken_over"].includes(claim.rows[0].outcome)) {
    await work(pool, { message_id: properties.messageId, payload: content, ...claim.rows[0] });
  }
}

const sleep = (milliseconds) => new Promise((wake) => setTimeout(wake, milliseconds));
let running = true;
for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => (running = false));

// Consumes until told to stop or something breaks.
async function consume(pool) {
  const connection = await amqp.connect(AMQP_URL);
  let broken;
  connection.on("error", (error) => (broken = error));
  connection.on("close", () => (broken ??= new Error("the connection was closed")));
  try {
    const channel = await connection.createChannel();
    channel.on("error", (error) => (broken = error));
    await channel.prefetch(20);
    // One after the other: claims in the order of delivery keep the order of a key.
    const received = [];
    await channel.consume(QUEUE, (message) =>
      message ? received.push(message) : (broken = new Error("the queue was deleted")));
    let asked = 0;
    while (running && !broken) {
      if (Date.now() - asked >= 500) {
        await workOffDue(pool);
        asked = Date.now();
      }
      const message = received.shift();
      if (message) {
        await receive(pool, message);
        channel.ack(message);
      } else {
        await sleep(20);
      }
    }
    if (broken) throw broken;
    await channel.close();
  } finally {
    await connection.close().catch(() => {});
  }
}

const pool = new pg.Pool({ connectionString: DATABASE_URL, max: 4 });
pool.on("error", (error) => console.log(`a session ended: ${error.message}`));
while (running) {
  try {
    await consume(pool);
  } catch (error) {
    console.log(`trying again: ${error.message}`);
    await sleep(1000);
  }
}
await pool.end();
