"""Verifies recorded requests with the published Python libraries.

Usage: verify.py FILE, with one JSON object per line:
{"what", "headers", "body_base64", "secret", "expect"}. Prints how many
checks held and exits 1 when one did not.
"""

import base64
import json
import sys

import standardwebhooks
import svix.webhooks

LIBRARIES = {
    "standardwebhooks": (standardwebhooks.Webhook, standardwebhooks.WebhookVerificationError),
    "svix": (svix.webhooks.Webhook, svix.webhooks.WebhookVerificationError),
}


def is_verified(webhook, error, case):
    try:
        webhook(case["secret"]).verify(base64.b64decode(case["body_base64"]), case["headers"])
        return True
    except error:
        return False


def main(path):
    checks = 0
    wrong = []
    with open(path, encoding="utf-8") as lines:
        for case in map(json.loads, lines):
            for name, (webhook, error) in LIBRARIES.items():
                checks += 1
                if is_verified(webhook, error, case) != case["expect"]:
                    wrong.append(f"{name} on {case['what']}: expected {case['expect']}")
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    print(f"{checks - len(wrong)} of {checks} checks held")
    return 1 if wrong or not checks else 0


sys.exit(main(sys.argv[1]))
