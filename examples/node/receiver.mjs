// A receiver that verifies, and keeps each event once:
//
//     npm install standardwebhooks
//     WEBHOOK_SECRET=whsec_… node receiver.mjs 9000 inbox.ndjson
//
// listens on 127.0.0.1:9000. The inbox is a file with one event per line, on disk
// before the request is answered; the work is done by whoever reads it, in its
// order. (With a database, record tenant and id in the transaction of the work
// instead.) While a secret is being replaced, WEBHOOK_SECRET has both, separated
// by a comma.

import { closeSync, fsyncSync, ftruncateSync, openSync, readFileSync, writeSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

// From NODE_PACKAGES where it is set, else from beside this file.
const packages = join(resolve(process.env.NODE_PACKAGES ?? dirname(fileURLToPath(import.meta.url))), "package.json");
const { Webhook, WebhookVerificationError } = createRequire(packages)("standardwebhooks");

const REMEMBERED_MS = 14 * 86_400_000;

class Inbox {
  /** When each event came, oldest first. */
  seen = new Map();
  /** The highest place of each key of each tenant. */
  highest = new Map();

  constructor(path) {
    closeSync(openSync(path, "a")); // it is there
    const text = readFileSync(path, "utf8");
    const whole = text.slice(0, text.lastIndexOf("\n") + 1);
    this.file = openSync(path, "r+");
    // A crash may have left half a line, of an event that was never acknowledged.
    this.length = Buffer.byteLength(whole);
    ftruncateSync(this.file, this.length);
    for (const line of whole.split("\n").filter(Boolean)) this.remember(JSON.parse(line));
  }

  /** Keeps an event, unless it is kept already; returns the status to answer. */
  receive(event, body) {
    const { tenant, id, key = null, seq = null } = event;
    if (this.seen.has(name(event))) return 200;
    // A late one comes after a later place of its key: a replay.
    const late = seq !== null && seq < (this.highest.get(lane(event)) ?? 0);
    const entry = { received_at: Date.now(), tenant, id, key, seq, late, body };
    const line = Buffer.from(JSON.stringify(entry) + "\n");
    try {
      writeSync(this.file, line, 0, line.length, this.length);
      fsyncSync(this.file);
    } catch (problem) {
      ftruncateSync(this.file, this.length); // released: the gateway sends it again
      throw problem;
    }
    this.length += line.length;
    this.remember(entry);
    return 202;
  }

  remember(entry) {
    this.seen.set(name(entry), entry.received_at);
    if (entry.seq !== null) this.highest.set(lane(entry), Math.max(entry.seq, this.highest.get(lane(entry)) ?? 0));
    for (const [id, at] of this.seen) {
      if (at > Date.now() - REMEMBERED_MS) break;
      this.seen.delete(id);
    }
  }
}

/** Two tenants may have events with the same id. */
const name = (event) => JSON.stringify([event.tenant, event.id]);

/** Two tenants may have the same key, too. */
const lane = (event) => JSON.stringify([event.tenant, event.key ?? null]);

/** Returns the event if one of the secrets fits; otherwise throws the reason. */
function verify(body, headers) {
  let reason;
  for (const secret of secrets) {
    try {
      return new Webhook(secret).verify(body, headers);
    } catch (problem) {
      reason = problem;
    }
  }
  throw reason;
}

async function receive(request) {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const body = Buffer.concat(chunks).toString("utf8"); // the raw body, before anything parses it
  try {
    const event = verify(body, request.headers);
    if (typeof event?.id !== "string" || typeof event.tenant !== "string") return [422, "not an envelope"];
    return [inbox.receive(event, body), ""];
  } catch (problem) {
    if (problem instanceof WebhookVerificationError) return [400, problem.message];
    if (problem instanceof SyntaxError) return [422, problem.message];
    console.error(problem);
    return [503, ""]; // the gateway sends it again
  }
}

const [port, path] = process.argv.slice(2);
const secrets = process.env.WEBHOOK_SECRET.split(",");
const inbox = new Inbox(path);
createServer(async (request, response) => {
  const [status, text] = await receive(request);
  response.writeHead(status).end(text);
}).listen(Number(port), "127.0.0.1");
