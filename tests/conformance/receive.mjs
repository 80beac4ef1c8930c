// A receiver for each of the published JavaScript libraries, and one that has
// none but the platform's own cryptography, for `v1a`.
//
// Listens on a free port of this machine and prints its number. `PUT /LIBRARY`
// with a secret tells that receiver what to verify with. `POST /LIBRARY` is a
// delivery: 400 if the library does not believe it, 503 the first time an id
// is seen there (so that it is retried), else 200. `POST /LIBRARY?at-once`
// never answers 503. The libraries are found from CONFORMANCE_NODE, where
// ./install put them.

import { createPublicKey, verify as verifySignature } from "node:crypto";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const folder = resolve(process.env.CONFORMANCE_NODE);
const require = createRequire(join(folder, "package.json"));
const standardwebhooks = require("standardwebhooks");
const svix = require("svix");
// It has no entry for require, so its own manifest says where it is.
const methods = join(folder, "node_modules/@octokit/webhooks-methods");
const entry = require(join(methods, "package.json")).exports["."].node.import;
const octokit = await import(pathToFileURL(join(methods, entry)));

function withWebhook(library) {
  return (secret, headers, body) => {
    try {
      new library.Webhook(secret).verify(body.toString("utf8"), headers);
      return true;
    } catch (error) {
      if (error instanceof library.WebhookVerificationError) return false;
      throw error;
    }
  };
}

function withPlatform(publicKey, headers, body) {
  const x = Buffer.from(publicKey.replace(/^whpk_/, ""), "base64").toString("base64url");
  const key = createPublicKey({ key: { kty: "OKP", crv: "Ed25519", x }, format: "jwk" });
  const signed = Buffer.concat([Buffer.from(`${headers["webhook-id"]}.${headers["webhook-timestamp"]}.`), body]);
  const tokens = headers["webhook-signature"].split(" ").map((token) => token.split(","));
  return tokens.some(([version, token]) => version === "v1a" && verifySignature(null, signed, key, Buffer.from(token, "base64")));
}

const libraries = {
  standardwebhooks: withWebhook(standardwebhooks),
  svix: withWebhook(svix),
  octokit: (secret, headers, body) => octokit.verify(secret, body.toString("utf8"), headers["x-hub-signature-256"]),
  platform: withPlatform,
};

const secrets = {};
const seen = new Set();

const server = createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const body = Buffer.concat(chunks);
  const url = new URL(request.url, "http://receiver");
  const name = url.pathname.slice(1);
  if (request.method === "PUT") {
    secrets[name] = body.toString("utf8");
    return response.end();
  }
  if (!(await libraries[name](secrets[name], request.headers, body))) {
    response.statusCode = 400;
    return response.end(`${name}: the signature does not fit`);
  }
  const delivery = `${name} ${request.headers["x-event-id"]}`;
  response.statusCode = seen.has(delivery) || url.search === "?at-once" ? 200 : 503;
  seen.add(delivery);
  response.end();
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
