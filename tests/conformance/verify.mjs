// Verifies recorded requests with the published JavaScript libraries.
//
// Usage: verify.mjs FILE, with one JSON object per line:
// {"what", "headers", "body_base64", "secret", "expect"}. Prints how many
// checks held and exits 1 when one did not. The libraries are found from
// CONFORMANCE_NODE, where ./install put them.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";

const require = createRequire(resolve(process.env.CONFORMANCE_NODE, "package.json"));
const libraries = { standardwebhooks: require("standardwebhooks"), svix: require("svix") };

function isVerified(library, { secret, body_base64, headers }) {
  try {
    new library.Webhook(secret).verify(Buffer.from(body_base64, "base64").toString("utf8"), headers);
    return true;
  } catch (error) {
    if (error instanceof library.WebhookVerificationError) return false;
    throw error;
  }
}

const cases = readFileSync(process.argv[2], "utf8").split("\n").filter(Boolean).map((line) => JSON.parse(line));
let checks = 0;
let wrong = 0;
for (const recorded of cases) {
  for (const [name, library] of Object.entries(libraries)) {
    checks += 1;
    if (isVerified(library, recorded) !== recorded.expect) {
      wrong += 1;
      console.error(`${name} on ${recorded.what}: expected ${recorded.expect}`);
    }
  }
}
console.log(`${checks - wrong} of ${checks} checks held`);
process.exit(wrong > 0 || checks === 0 ? 1 : 0);
