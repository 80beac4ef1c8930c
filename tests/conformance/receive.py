"""A receiver for each of the published Python libraries.

Listens on a free port of this machine and prints its number. `PUT /LIBRARY`
with a secret tells that receiver what to verify with. `POST /LIBRARY` is a
delivery: 400 if the library does not believe it, 503 the first time an id is
seen there (so that it is retried), else 200. `POST /LIBRARY?at-once` never
answers 503.
"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import standardwebhooks
import stripe
import svix.webhooks


def with_standardwebhooks(secret, headers, body):
    standardwebhooks.Webhook(secret).verify(body, headers)


def with_svix(secret, headers, body):
    svix.webhooks.Webhook(secret).verify(body, headers)


def with_stripe(secret, headers, body):
    stripe.WebhookSignature.verify_header(
        body.decode("utf-8"), headers.get("stripe-signature", ""), secret, stripe.Webhook.DEFAULT_TOLERANCE
    )


LIBRARIES = {
    "standardwebhooks": (with_standardwebhooks, standardwebhooks.WebhookVerificationError),
    "svix": (with_svix, svix.webhooks.WebhookVerificationError),
    "stripe": (with_stripe, stripe.SignatureVerificationError),
}

secrets = {}
seen = set()


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def body(self):
        return self.rfile.read(int(self.headers["content-length"]))

    def answer(self, status, text):
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_PUT(self):
        secrets[self.path.strip("/")] = self.body().decode()
        self.answer(200, "")

    def do_POST(self):
        where = urlsplit(self.path)
        name, body = where.path.strip("/"), self.body()
        verify, error = LIBRARIES[name]
        headers = {key.lower(): value for key, value in self.headers.items()}
        try:
            verify(secrets[name], headers, body)
        except error as problem:
            return self.answer(400, f"{name}: {problem}")
        is_first = (name, headers["x-event-id"]) not in seen
        seen.add((name, headers["x-event-id"]))
        return self.answer(503 if is_first and where.query != "at-once" else 200, "")

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
print(server.server_address[1], flush=True)
server.serve_forever()
