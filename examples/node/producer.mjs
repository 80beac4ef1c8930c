// Hands in events, each once, with what Node 18 has:
//
//     POSTHASTE_TOKEN=… node producer.mjs http://127.0.0.1:8400 default 3
//
// hands in three events of an order. Run it again: the gateway knows them already.

import { setTimeout as sleep } from "node:timers/promises";

const TRIES = 10;
const TEMPORARY = [408, 429, 500, 502, 503, 504, 507];

/** Hands in an event and returns the receipt. The event's id makes repeats safe. */
export async function send(server, tenant, event) {
  for (let tries = 1; ; tries++) {
    let retryAfter = 0;
    try {
      const answer = await fetch(`${server}/v1/tenants/${tenant}/events`, {
        method: "POST",
        headers: { authorization: `Bearer ${process.env.POSTHASTE_TOKEN}`, "content-type": "application/json" },
        body: JSON.stringify(event),
        signal: AbortSignal.timeout(30_000),
      });
      if (answer.ok) return await answer.json();
      const text = await answer.text();
      if (!TEMPORARY.includes(answer.status)) throw new Refusal(`${event.id} was refused: ${answer.status} ${text}`);
      if (tries === TRIES) throw new Refusal(`${event.id} was not accepted: ${answer.status} ${text}`);
      retryAfter = Number.parseInt(answer.headers.get("retry-after") ?? "0", 10) || 0;
    } catch (problem) {
      // Anything else: not reached, reset, or no answer in time.
      if (problem instanceof Refusal || tries === TRIES) throw problem;
    }
    // Doubles up to ten seconds, half of it drawn, and never less than was asked for.
    const backoff = Math.min(10_000, 100 * 2 ** (tries - 1)) * (0.5 + Math.random() / 2);
    await sleep(retryAfter * 1_000 + backoff);
  }
}

class Refusal extends Error {}

const [server, tenant, count] = process.argv.slice(2);
for (let n = 1; n <= Number(count); n++) {
  // The id comes from what happened, so that a repeat after a crash has no effect.
  const event = { id: `order-7-${n}`, type: "order.changed", key: "order-7", data: { step: n } };
  const receipt = await send(server.replace(/\/$/, ""), tenant, event);
  console.log(receipt.id, receipt.duplicate ? "duplicate" : "accepted");
}
