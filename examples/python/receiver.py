"""A receiver that verifies, and applies each event once:

    pip install standardwebhooks
    WEBHOOK_SECRET=whsec_… python3 receiver.py 9000 inbox.db

listens on 127.0.0.1:9000. The inbox is a table of the database that the work is
done in, so that an event and its effect are one transaction. While a secret is
being replaced, WEBHOOK_SECRET has both, separated by a comma.
"""

import json
import os
import sqlite3
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks import Webhook, WebhookVerificationError

BODY_BYTES_MAX = 16 * 1024 * 1024

TABLES = """
    PRAGMA journal_mode = wal;
    PRAGMA synchronous = full;
    CREATE TABLE IF NOT EXISTS inbox (
        tenant TEXT NOT NULL, id TEXT NOT NULL, key TEXT, seq INTEGER,
        received_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, UNIQUE (tenant, id));
    CREATE INDEX IF NOT EXISTS inbox_by_age ON inbox (received_at);
    CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, seq INTEGER NOT NULL, step INTEGER NOT NULL);
"""


class Refused(Exception):
    """The event can never be applied."""


class Inbox:
    def __init__(self, path):
        self.lock = threading.Lock()
        self.database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.database.executescript(TABLES)

    def receive(self, event):
        """Applies an event, unless it was; returns the status to answer."""
        with self.lock:
            self.database.execute("BEGIN IMMEDIATE")
            try:
                # Two tenants may have events with the same id.
                row = (event["tenant"], event["id"], event.get("key"), event.get("seq"))
                new = self.database.execute("INSERT OR IGNORE INTO inbox (tenant, id, key, seq) VALUES (?, ?, ?, ?)", row)
                if new.rowcount == 1:
                    apply(self.database, event)
                    self.database.execute("DELETE FROM inbox WHERE received_at < datetime('now', '-14 days')")
                self.database.execute("COMMIT")
                return 202 if new.rowcount == 1 else 200
            except BaseException:
                self.database.execute("ROLLBACK")
                raise


def apply(database, event):
    """The work: keeps the last step of each order. An older one never overwrites a newer one."""
    if event["type"] != "order.changed":
        return
    step = event["data"]["step"]
    if not isinstance(step, int):
        raise Refused("data.step is not a number")
    database.execute(
        "INSERT INTO orders (id, seq, step) VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE"
        " SET seq = excluded.seq, step = excluded.step WHERE excluded.seq > orders.seq",
        (event["key"], event["seq"], step),
    )


def verify(webhooks, body, headers):
    """Raises the reason if none of the secrets fits."""
    for webhook in webhooks:
        try:
            return webhook.verify(body, headers, json_parse=False)
        except (WebhookVerificationError, ValueError) as problem:
            reason = problem  # ValueError where the signature is garbled
    raise WebhookVerificationError(f"the signature does not fit: {reason}")


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        length = max(0, int(self.headers.get("content-length", 0)))
        body = self.rfile.read(min(length, BODY_BYTES_MAX))  # the raw bytes, before anything parses them
        if length > BODY_BYTES_MAX:
            for left in range(length - BODY_BYTES_MAX, 0, -65536):
                if not self.rfile.read(min(left, 65536)):  # read, so that the answer arrives
                    break
            return self.answer(413, "the body is larger than 16 MiB")
        if len(body) < length:
            return self.answer(503, "the body breaks off")
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            verify(webhooks, body, headers)
            self.answer(inbox.receive(json.loads(body.decode())))
        except WebhookVerificationError as problem:
            self.answer(400, str(problem))
        except (Refused, KeyError, TypeError, OverflowError, json.JSONDecodeError) as problem:
            self.answer(422, f"not an event that can be applied: {problem!r}")  # a dead letter at once
        except Exception as problem:
            self.log_error("%r", problem)
            self.answer(503)  # the gateway sends it again

    def answer(self, status, text=""):
        self.send_response(status)
        self.send_header("content-length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_request(self, *_):
        pass


if __name__ == "__main__":
    webhooks = [Webhook(secret) for secret in os.environ["WEBHOOK_SECRET"].split(",")]
    inbox = Inbox(sys.argv[2])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
