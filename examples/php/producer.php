<?php
// Hands in events, each once, with what PHP 8 has built in:
//
//     POSTHASTE_TOKEN=… php producer.php http://127.0.0.1:8400 default 3
//
// hands in three events of an order. Run it again: the gateway knows them already.

declare(strict_types=1);

const TRIES = 10;
const TEMPORARY = [0, 408, 429, 500, 502, 503, 504, 507];

/** Makes one call; returns the status (0 if there is no answer), the body and the seconds of Retry-After. */
function post(string $url, string $body): array
{
    $headers = ['Authorization: Bearer ' . getenv('POSTHASTE_TOKEN'), 'Content-Type: application/json', 'Connection: close'];
    $context = stream_context_create(['http' => [
        'method' => 'POST', 'header' => $headers, 'content' => $body, 'timeout' => 30,
        'ignore_errors' => true, 'follow_location' => 0,
    ]]);
    $answer = @file_get_contents($url, false, $context);
    if ($answer === false || !isset($http_response_header[0])) {
        return [0, 'not reached, reset, or no answer in time', 0];
    }
    preg_match('/^HTTP\S+ (\d{3})/', $http_response_header[0], $status);
    $after = preg_grep('/^retry-after: *\d+$/i', $http_response_header);
    $seconds = $after ? (int) preg_replace('/\D/', '', reset($after)) : 0;
    return [(int) $status[1], $answer, $seconds];
}

/** Hands in an event and returns the receipt. The event's id makes repeats safe. */
function send(string $server, string $tenant, array $event): array
{
    for ($tries = 1; ; $tries++) {
        [$status, $text, $retryAfter] = post("$server/v1/tenants/$tenant/events", json_encode($event, JSON_THROW_ON_ERROR));
        if ($status === 202) {
            return json_decode($text, true, flags: JSON_THROW_ON_ERROR);
        }
        if (!in_array($status, TEMPORARY, true) || $tries === TRIES) {
            throw new RuntimeException("{$event['id']} was not accepted: $status $text");
        }
        // Doubles up to ten seconds, half of it drawn, and never less than was asked for.
        $backoff = min(10_000, 100 * 2 ** ($tries - 1));
        usleep(1_000 * ($retryAfter * 1_000 + random_int(intdiv($backoff, 2), $backoff)));
    }
}

[, $server, $tenant, $count] = $argv;
for ($n = 1; $n <= (int) $count; $n++) {
    // The id comes from what happened, so that a repeat after a crash has no effect.
    $event = ['id' => "order-7-$n", 'type' => 'order.changed', 'key' => 'order-7', 'data' => ['step' => $n]];
    $receipt = send(rtrim($server, '/'), $tenant, $event);
    echo $receipt['id'], $receipt['duplicate'] ? ' duplicate' : ' accepted', "\n";
}
