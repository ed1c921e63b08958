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
const NOT_THE_OWNER = "OX001";
const MANY_RETURNS = 5;

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
      await one(pool, "SELECT inbox.fail($1, $2, $3, 'permanent', $4)", [...key, said(failure)]);
    } else if (broken) {
      throw failure; // The database is away; the entry's lease will end.
    } else {
      await putOff(pool, key, said(failure), failure.seconds ?? null);
    }
  } finally {
    transaction.release(broken);
  }
}

async function putOff(pool, key, reason, seconds) {
  try {
    await one(pool, "SELECT inbox.retry($1, $2, $3, $4, make_interval(secs => $5))", [...key, reason, seconds]);
  } catch (error) {
    if (error.code !== NOT_THE_OWNER) throw error;
    // Another owner has it now, and will say how it ends.
  }
}

// A reason that PostgreSQL can store: without U+0000, and of a length that people read.
const said = (failure) => String(failure.message ?? failure).replaceAll("\0", "\ufffd").slice(0, 2000);

// Retries whose time came, entries whose turn came, and those whose owner died. One after the
// other, as they are worked on: the lease of a second one would run out, and an attempt be lost,
// while the first is worked on.
async function workOffDue(pool) {
  while (running) {
    const due = await pool.query("SELECT * FROM inbox.due($1, 1, $2)", [CONSUMER, LEASE]);
    if (due.rows.length === 0) return;
    await work(pool, due.rows[0]);
  }
}

// Claims what was delivered, and works on it if it is ours. Afterwards it may be acked.
async function receive(pool, { content, fields, properties }) {
  const { messageId, type, contentType } = properties;
  // What is not UTF-8 comes with U+FFFD, and different ids would become one.
  if (!messageId || /[\0\ufffd]/.test(messageId)) {
    return refuse(pool, null, content, "the property message-id is missing or no text");
  }
  let claim;
  try {
    claim = await pool.query(
      "SELECT * FROM inbox.claim($1, $2, $3, $4, $5, $6, $7, $8, max_attempts => $9)",
      [
        CONSUMER,
        messageId,
        LEASE,
        content,
        JSON.stringify(properties.headers ?? {}),
        JSON.stringify({ type, content_type: contentType }),
        fields.exchange,
        fields.routingKey,
        MAX_ATTEMPTS,
      ],
    );
  } catch (error) {
    if (!/^(22|23|54)/.test(error.code)) throw error;
    // The message is to blame, not the database: it would be refused for ever.
    return refuse(pool, messageId, content, said(error));
  }
  // duplicate, busy, waiting, dead: it is stored, and needs nothing more of us.
  if (!["claimed", "taken_over"].includes(claim.rows[0].outcome)) return;
  if (properties.headers?.["x-delivery-count"] >= MANY_RETURNS) {
    // Somebody crashes with this one among his deliveries, and the queue drops what comes back too
    // often: left to inbox.due, it is off the queue before anything crashes again.
    await one(pool, "SELECT inbox.release($1, $2, $3)", [CONSUMER, messageId, claim.rows[0].owner]);
  } else {
    await work(pool, { message_id: messageId, payload: content, ...claim.rows[0] });
  }
}

// Keeps a message that nobody can work on: dead, once. The body is all that is sure to fit.
const refuse = (pool, messageId, content, reason) =>
  one(pool, "SELECT inbox.refuse($1, $2, $3, $4)", [CONSUMER, messageId, content, reason]);

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
    let asked = Date.now();
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
