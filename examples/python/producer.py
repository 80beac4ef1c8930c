"""Hands in events, each once, with Python's standard library alone:

    POSTHASTE_TOKEN=… python3 producer.py http://127.0.0.1:8400 default 3

hands in three events of an order. Run it again: the gateway knows them already.
"""

import json
import os
import random
import sys
import time
import urllib.error
import urllib.request

TRIES = 10
TEMPORARY = {408, 429, 500, 502, 503, 504, 507}


def send(server, tenant, event):
    """Hands in an event and returns the receipt. The event's id makes repeats safe."""
    request = urllib.request.Request(
        f"{server}/v1/tenants/{tenant}/events",
        data=json.dumps(event).encode(),
        headers={"authorization": f"Bearer {os.environ['POSTHASTE_TOKEN']}", "content-type": "application/json"},
    )
    for tries in range(1, TRIES + 1):
        retry_after = 0
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refusal:
            text = refusal.read().decode("utf-8", "replace")
            if refusal.code not in TEMPORARY or tries == TRIES:
                raise RuntimeError(f"{event['id']} was refused: {refusal.code} {text}") from refusal
            seconds = refusal.headers.get("retry-after", "0")
            retry_after = int(seconds) if seconds.isdigit() else 0
        except OSError as problem:  # not reached, reset, or no answer in time
            if tries == TRIES:
                raise RuntimeError(f"{event['id']} was not handed in: {problem}") from problem
        # Doubles up to ten seconds, half of it drawn, and never less than was asked for.
        time.sleep(retry_after + min(10, 0.1 * 2 ** (tries - 1)) * (0.5 + random.random() / 2))


if __name__ == "__main__":
    server, tenant, count = sys.argv[1].rstrip("/"), sys.argv[2], int(sys.argv[3])
    for n in range(1, count + 1):
        # The id comes from what happened, so that a repeat after a crash has no effect.
        event = {"id": f"order-7-{n}", "type": "order.changed", "key": "order-7", "data": {"step": n}}
        receipt = send(server, tenant, event)
        print(receipt["id"], "duplicate" if receipt["duplicate"] else "accepted", flush=True)
