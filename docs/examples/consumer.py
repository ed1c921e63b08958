"""A consumer in Python that uses nothing but the SQL functions of schema inbox and an AMQP client.

    DATABASE_URL=postgres://… AMQP_URL=amqp://… QUEUE=billing python consumer.py

Its handler is transactional: effect and result commit together with the entry. It writes into

    CREATE TABLE booking (message_id text, amount bigint)

One message at a time keeps it short; more at once are more processes.
"""

import functools
import json
import os
import signal
import time

import pika
import psycopg
from psycopg.types.json import Jsonb

CONSUMER, QUEUE = os.environ.get("CONSUMER", "billing"), os.environ["QUEUE"]
LEASE, MAX_ATTEMPTS = os.environ.get("LEASE", "60s"), 5
NOT_THE_OWNER = "OX001"
MANY_RETURNS = 5
running = True


class Permanent(Exception):
    """Trying again is of no use."""


class Later(Exception):
    """Try again, at the earliest after so many seconds, if given."""

    def __init__(self, reason, seconds=None):
        super().__init__(reason)
        self.seconds = seconds


def handle(transaction, message):
    """The application's own part: whatever it does in the transaction happens once."""
    try:
        order = json.loads(bytes(message["payload"]))
        amount = int(order["amount"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise Permanent(f"not an order: {error!r}") from error
    if order.get("wait") and message["attempt"] == 1:
        raise Later("asked to come back", order["wait"])
    transaction.execute(
        "INSERT INTO booking (message_id, amount) VALUES (%s, %s)", (message["message_id"], amount)
    )
    return {"booked": amount}


def work(database, message):
    """Runs the handler on a claimed message and says how it ended."""
    key = (CONSUMER, message["message_id"], message["owner"])
    try:
        with database.transaction():
            if not one(database, "SELECT inbox.hold(%s, %s, %s)", key):
                return  # Another owner has it now.
            result = handle(database, message)
            if not one(database, "SELECT inbox.complete(%s, %s, %s, %s)", (*key, Jsonb(result))):
                raise psycopg.Rollback()
    except Permanent as failure:
        one(database, "SELECT inbox.fail(%s, %s, %s, 'permanent', %s)", (*key, said(failure)))
    except psycopg.OperationalError:
        raise  # The database is away; the entry's lease will end.
    except Exception as failure:
        put_off(database, key, said(failure), getattr(failure, "seconds", None))


def put_off(database, key, reason, seconds):
    sql = "SELECT inbox.retry(%s, %s, %s, %s, make_interval(secs => %s))"
    try:
        one(database, sql, (*key, reason, seconds))
    except psycopg.DatabaseError as error:
        if error.sqlstate != NOT_THE_OWNER:
            raise
        # Another owner has it now, and will say how it ends.


def said(failure):
    """A reason that PostgreSQL can store: without U+0000, and of a length that people read."""
    return (str(failure) or repr(failure)).replace("\0", "\ufffd")[:2000]


def one(database, sql, parameters):
    return database.execute(sql, parameters).fetchone()[0]


def rows(cursor):
    names = [column.name for column in cursor.description]
    return [dict(zip(names, row)) for row in cursor.fetchall()]


def work_off_due(database):
    """Retries whose time came, entries whose turn came, and those whose owner died.

    One after the other, as they are worked on: the lease of a second one would run out, and an
    attempt be lost, while the first is worked on. Not for ever, as the broker must hear of us."""
    until = time.monotonic() + 5
    while running and time.monotonic() < until:
        sql = "SELECT * FROM inbox.due(%s, 1, %s::interval)"
        due = rows(database.execute(sql, (CONSUMER, LEASE)))
        if not due:
            return
        work(database, due[0])


def receive(database, method, properties, body):
    """Claims what was delivered, and works on it if it is ours. Afterwards it may be acked."""
    message_id = properties.message_id
    # What is not UTF-8 comes as bytes.
    if not isinstance(message_id, str) or not message_id or "\0" in message_id:
        return refuse(database, None, body, "the property message-id is missing or no text")
    try:
        claim = rows(
            database.execute(
                "SELECT * FROM inbox.claim(%s, %s, %s::interval, %s, %s, %s, %s, %s, "
                "max_attempts => %s)",
                (
                    CONSUMER,
                    message_id,
                    LEASE,
                    body,
                    jsonb(properties.headers or {}),
                    jsonb({"type": properties.type, "content_type": properties.content_type}),
                    method.exchange,
                    method.routing_key,
                    MAX_ATTEMPTS,
                ),
            )
        )[0]
    except (psycopg.DataError, psycopg.IntegrityError, psycopg.errors.ProgramLimitExceeded) as error:
        # The message is to blame, not the database: it would be refused for ever.
        return refuse(database, message_id, body, said(error))
    # duplicate, busy, waiting, dead: it is stored, and needs nothing more of us.
    if claim["outcome"] not in ("claimed", "taken_over"):
        return
    if (properties.headers or {}).get("x-delivery-count", 0) >= MANY_RETURNS:
        # Somebody crashes with this one among his deliveries, and the queue drops what comes back
        # too often: left to inbox.due, it is off the queue before anything crashes again.
        one(database, "SELECT inbox.release(%s, %s, %s)", (CONSUMER, message_id, claim["owner"]))
    else:
        work(database, {"message_id": message_id, "payload": body, **claim})


def refuse(database, message_id, body, reason):
    """Keeps a message that nobody can work on: dead, once. The body is all that is sure to fit."""
    one(database, "SELECT inbox.refuse(%s, %s, %s, %s)", (CONSUMER, message_id, body, reason))


def jsonb(value):
    return Jsonb(value, dumps=functools.partial(json.dumps, default=str))


def consume():
    """Consumes until told to stop; whatever breaks is opened again."""
    # Autocommit: a claim commits before its handler starts.
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as database:
        connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
        channel = connection.channel()
        channel.basic_qos(prefetch_count=20)
        asked = time.monotonic()
        for method, properties, body in channel.consume(QUEUE, inactivity_timeout=0.2):
            if not running:
                break
            if time.monotonic() - asked >= 0.5:
                work_off_due(database)
                asked = time.monotonic()
            if method is not None:
                receive(database, method, properties, body)
                channel.basic_ack(method.delivery_tag)
        # Not cancelled first: the queue would pass to the next single active consumer before what
        # was delivered here and not worked on has gone back.
        connection.close()


def stop(*_):
    global running
    running = False


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    while running:
        try:
            consume()
        except (psycopg.OperationalError, pika.exceptions.AMQPError) as error:
            print(f"trying again: {error!r}", flush=True)
            time.sleep(1)
