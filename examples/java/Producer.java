// Hands in events, each once, with Java's standard library alone:
//
//     POSTHASTE_TOKEN=… java Producer.java http://127.0.0.1:8400 default 3
//
// hands in three events of an order. Run it again: the gateway knows them already.

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;

public class Producer {
    private static final int TRIES = 10;
    private static final Set<Integer> TEMPORARY = Set.of(408, 429, 500, 502, 503, 504, 507);
    private static final HttpClient CLIENT =
        HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).connectTimeout(Duration.ofSeconds(5)).build();

    /** Hands in an event and returns the receipt, both as JSON. The event's id makes repeats safe. */
    static String send(String server, String tenant, String event) throws IOException, InterruptedException {
        HttpRequest request = HttpRequest.newBuilder(URI.create(server + "/v1/tenants/" + tenant + "/events"))
            .timeout(Duration.ofSeconds(30))
            .header("Authorization", "Bearer " + System.getenv("POSTHASTE_TOKEN"))
            .header("Content-Type", "application/json")
            .POST(HttpRequest.BodyPublishers.ofString(event))
            .build();
        for (int tries = 1;; tries++) {
            long retryAfter = 0;
            try {
                HttpResponse<String> answer = CLIENT.send(request, HttpResponse.BodyHandlers.ofString());
                if (answer.statusCode() == 202) {
                    return answer.body();
                }
                if (!TEMPORARY.contains(answer.statusCode()) || tries == TRIES) {
                    throw new IllegalStateException("not accepted: " + answer.statusCode() + " " + answer.body());
                }
                retryAfter = answer.headers().firstValue("retry-after").filter(text -> text.matches("\\d{1,9}")).map(Long::parseLong).orElse(0L);
            } catch (IOException problem) {
                // Not reached, reset, or no answer in time.
                if (tries == TRIES) {
                    throw problem;
                }
            }
            // Doubles up to ten seconds, half of it drawn, and never less than was asked for.
            long backoff = Math.min(10_000, 100L << (tries - 1));
            Thread.sleep(retryAfter * 1_000 + backoff / 2 + ThreadLocalRandom.current().nextLong(backoff / 2));
        }
    }

    public static void main(String[] args) throws Exception {
        String server = args[0].replaceAll("/$", "");
        for (int n = 1; n <= Integer.parseInt(args[2]); n++) {
            // The id comes from what happened, so that a repeat after a crash has no effect.
            String id = "order-7-" + n;
            String event = "{\"id\":\"" + id + "\",\"type\":\"order.changed\",\"key\":\"order-7\",\"data\":{\"step\":" + n + "}}";
            String receipt = send(server, args[1], event);
            System.out.println(id + (receipt.replace(" ", "").contains("\"duplicate\":true") ? " duplicate" : " accepted"));
        }
    }
}
