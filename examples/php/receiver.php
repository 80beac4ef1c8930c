<?php
// A receiver that verifies, and applies each event once, with PHP 8 and its SQLite:
//
//     WEBHOOK_SECRET=whsec_… INBOX=inbox.db php -S 127.0.0.1:9000 receiver.php
//
// runs it in PHP's own server, for tries; behind a real one it is the same file. The
// inbox is a table of the database that the work is done in, so that an event and its
// effect are one transaction. While a secret is being replaced, WEBHOOK_SECRET has both,
// separated by a comma.

declare(strict_types=1);

const TOLERANCE_SECONDS = 300;
const BODY_BYTES_MAX = 16 * 1024 * 1024;

/** The event can never be applied. */
class Refused extends RuntimeException
{
}

/** Whether one of the secrets has signed the raw body, within five minutes. */
function is_signed(array $secrets, string $body): bool
{
    $id = $_SERVER['HTTP_WEBHOOK_ID'] ?? '';
    $timestamp = $_SERVER['HTTP_WEBHOOK_TIMESTAMP'] ?? '';
    if (!ctype_digit($timestamp) || abs(time() - (int) $timestamp) > TOLERANCE_SECONDS) {
        return false;
    }
    foreach ($secrets as $secret) {
        $key = base64_decode(preg_replace('/^whsec_/', '', $secret), true);
        $expected = 'v1,' . base64_encode(hash_hmac('sha256', "$id.$timestamp.$body", (string) $key, true));
        foreach (explode(' ', $_SERVER['HTTP_WEBHOOK_SIGNATURE'] ?? '') as $token) {
            if ($key && hash_equals($expected, $token)) {
                return true;
            }
        }
    }
    return false;
}

function open_database(string $path): PDO
{
    $database = new PDO("sqlite:$path", options: [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION, PDO::ATTR_TIMEOUT => 5]);
    $database->exec('PRAGMA journal_mode = wal; PRAGMA synchronous = full');
    $database->exec('CREATE TABLE IF NOT EXISTS inbox (tenant TEXT NOT NULL, id TEXT NOT NULL, key TEXT, seq INTEGER,
        received_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, UNIQUE (tenant, id))');
    $database->exec('CREATE INDEX IF NOT EXISTS inbox_by_age ON inbox (received_at)');
    $database->exec('CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, seq INTEGER NOT NULL, step INTEGER NOT NULL)');
    return $database;
}

/** The work: keeps the last step of each order. An older one never overwrites a newer one. */
function apply(PDO $database, array $event): void
{
    if ($event['type'] !== 'order.changed') {
        return;
    }
    if (!is_int($event['data']['step'] ?? null) || !isset($event['key'], $event['seq'])) {
        throw new Refused('data.step is not a number, or the event has no key');
    }
    $database->prepare('INSERT INTO orders (id, seq, step) VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE
        SET seq = excluded.seq, step = excluded.step WHERE excluded.seq > orders.seq')
        ->execute([$event['key'], $event['seq'], $event['data']['step']]);
}

/** Applies an event, unless it was; returns the status to answer. */
function receive(PDO $database, array $event): int
{
    $database->exec('BEGIN IMMEDIATE');
    try {
        // Two tenants may have events with the same id.
        $insert = $database->prepare('INSERT OR IGNORE INTO inbox (tenant, id, key, seq) VALUES (?, ?, ?, ?)');
        $insert->execute([$event['tenant'], $event['id'], $event['key'] ?? null, $event['seq'] ?? null]);
        $isNew = $insert->rowCount() === 1;
        if ($isNew) {
            apply($database, $event);
            $database->exec("DELETE FROM inbox WHERE received_at < datetime('now', '-14 days')");
        }
        $database->exec('COMMIT');
        return $isNew ? 202 : 200;
    } catch (Throwable $problem) {
        $database->exec('ROLLBACK');
        throw $problem;
    }
}

/** The status to answer, and a sentence for whoever looks at the attempt. */
function answer(): array
{
    // The raw bytes, before anything parses them; none where they are more than post_max_size.
    $body = file_get_contents('php://input', length: BODY_BYTES_MAX + 1);
    if (strlen($body) > BODY_BYTES_MAX || strlen($body) < (int) ($_SERVER['CONTENT_LENGTH'] ?? 0)) {
        return [413, 'the body is larger than 16 MiB, or than post_max_size in php.ini'];
    }
    if (!is_signed(explode(',', (string) getenv('WEBHOOK_SECRET')), $body)) {
        return [400, 'no secret fits the signature, or its time is more than five minutes away'];
    }
    $event = json_decode($body, true);
    if (!is_string($event['id'] ?? null) || !is_string($event['tenant'] ?? null) || !is_string($event['type'] ?? null)) {
        return [422, 'not an envelope'];
    }
    try {
        return [receive(open_database(getenv('INBOX') ?: 'inbox.db'), $event), ''];
    } catch (Refused $problem) {
        return [422, $problem->getMessage()]; // a dead letter at once
    } catch (Throwable $problem) {
        error_log((string) $problem);
        return [503, '']; // the gateway sends it again
    }
}

[$status, $text] = answer();
http_response_code($status);
echo $text;
