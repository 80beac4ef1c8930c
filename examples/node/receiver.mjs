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

import { constants, fsyncSync, ftruncateSync, openSync, readSync, writeSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

// From NODE_PACKAGES where it is set, else from beside this file.
const packages = join(resolve(process.env.NODE_PACKAGES ?? dirname(fileURLToPath(import.meta.url))), "package.json");
const { Webhook, WebhookVerificationError } = createRequire(packages)("standardwebhooks");

const REMEMBERED_MS = 14 * 86_400_000;
const BODY_BYTES_MAX = 16 * 1024 * 1024;

class Inbox {
  /** When each event came, oldest first. */
  seen = new Map();
  /** The highest place of each key of each tenant. */
  highest = new Map();

  constructor(path) {
    this.file = openSync(path, constants.O_RDWR | constants.O_CREAT);
    this.length = 0;
    // In pieces: a string has at most 512 MiB.
    const piece = Buffer.alloc(1 << 20);
    let rest = Buffer.alloc(0);
    for (let count; (count = readSync(this.file, piece, 0, piece.length, this.length + rest.length)) > 0; ) {
      rest = Buffer.concat([rest, piece.subarray(0, count)]);
      for (let end; (end = rest.indexOf("\n")) >= 0; rest = rest.subarray(end + 1)) {
        this.remember(JSON.parse(rest.toString("utf8", 0, end)));
        this.length += end + 1;
      }
    }
    // A crash may have left half a line, of an event that was never acknowledged.
    ftruncateSync(this.file, this.length);
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
      for (let at = 0; at < line.length; ) at += writeSync(this.file, line, at, line.length - at, this.length + at);
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
      if (!(problem instanceof WebhookVerificationError)) throw problem; // the secret fits, the body is no JSON
      reason = problem;
    }
  }
  throw reason;
}

/** Returns the raw body, before anything parses it; none if it is too large. */
async function read(request) {
  const chunks = [];
  let length = 0;
  for await (const chunk of request) {
    length += chunk.length;
    if (length <= BODY_BYTES_MAX) chunks.push(chunk); // what is beyond is read, so that the answer arrives
  }
  return length <= BODY_BYTES_MAX ? Buffer.concat(chunks).toString("utf8") : null;
}

async function receive(request) {
  try {
    const body = await read(request);
    if (body === null) return [413, "the body is larger than 16 MiB"];
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
