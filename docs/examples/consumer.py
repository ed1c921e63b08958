"""A consumer in Python that uses nothing but the SQL functions of schema inbox and an AMQP client.

    DATABASE_URL=postgres://… AMQP_URL=amqp://… QUEUE=billing python consumer.py

Its handler is transactional: effect and result commit together with the entry. It writes into

    CREATE TABLE booking (message_id text, amount bigint)

One message at a time keeps it short; more at once are more processes.
"""

import json
import os
import signal
import time

import pika
import psycopg
from psycopg.types.json import Jsonb

CONSUMER, QUEUE = os.environ.get("CONSUMER", "billing"), os.environ["QUEUE"]
LEASE, MAX_ATTEMPTS = os.environ.get("LEASE", "60s"), 5
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
    except (ValueError, KeyError, TypeError) as error:
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
        one(database, "SELECT inbox.fail(%s, %s, %s, 'permanent', %s)", (*key, str(failure)))
    except psycopg.OperationalError:
        raise  # The database is away; the entry's lease will end.
    except Exception as failure:
        seconds = getattr(failure, "seconds", None)
        one(
            database,
            "SELECT inbox.retry(%s, %s, %s, %s, make_interval(secs => %s))",
            (*key, repr(failure), seconds),
        )


def one(database, sql, parameters):
    return database.execute(sql, parameters).fetchone()[0]


def rows(cursor):
    names = [column.name for column in cursor.description]
    return [dict(zip(names, row)) for row in cursor.fetchall()]


def work_off_due(database):
    """Retries whose time came, entries whose turn came, and those whose owner died."""
    due = database.execute("SELECT * FROM inbox.due(%s, 10, %s::interval)", (CONSUMER, LEASE))
    for message in rows(due):
        work(database, message)


def receive(database, method, properties, body):
    """Claims what was delivered, and works on it if it is ours. Afterwards it may be acked."""
    headers = json.loads(json.dumps(properties.headers or {}, default=str))
    if not properties.message_id:
        # Without an identity nobody can work on it: dead, once.
        database.execute(
            "SELECT inbox.fail(%s, i.id, c.owner, 'malformed', 'the property message-id is missing') "
            "FROM (SELECT 'invalid:' || encode(sha256(%s), 'hex')) AS i (id), "
            "LATERAL inbox.claim(%s, i.id, %s::interval, %s, %s) AS c WHERE c.owner IS NOT NULL",
            (CONSUMER, body, CONSUMER, LEASE, body, Jsonb(headers)),
        )
        return
    claim = rows(
        database.execute(
            "SELECT * FROM inbox.claim(%s, %s, %s::interval, %s, %s, %s, %s, %s, "
            "max_attempts => %s)",
            (
                CONSUMER,
                properties.message_id,
                LEASE,
                body,
                Jsonb(headers),
                Jsonb({"type": properties.type, "content_type": properties.content_type}),
                method.exchange,
                method.routing_key,
                MAX_ATTEMPTS,
            ),
        )
    )[0]
    # duplicate, busy, waiting, dead: it is stored, and needs nothing more of us.
    if claim["outcome"] in ("claimed", "taken_over"):
        work(database, {"message_id": properties.message_id, "payload": body, **claim})


def consume():
    """Consumes until told to stop; whatever breaks is opened again."""
    # Autocommit: a claim commits before its handler starts.
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as database:
        connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
        channel = connection.channel()
        channel.basic_qos(prefetch_count=20)
        asked = 0.0
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
