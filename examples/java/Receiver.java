// A receiver that verifies, and keeps each event once, with Java's standard library alone:
//
//     WEBHOOK_SECRET=whsec_… java Receiver.java 9000 inbox.txt
//
// listens on 127.0.0.1:9000. The inbox is a file with one event per line (when it came,
// its tenant, its id, and its body in base64), on disk before the request is answered; the
// work is done by whoever reads it, in its order. (With a database, record tenant and id
// in the transaction of the work instead.) While a secret is being replaced,
// WEBHOOK_SECRET has both, separated by a comma.

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

public class Receiver {
    private static final Duration REMEMBERED = Duration.ofDays(14);
    private static final long TOLERANCE_SECONDS = 300;
    private static final int BODY_BYTES_MAX = 16 * 1024 * 1024;
    /** The start of an envelope, to its tenant: nothing but texts and numbers comes before it. */
    private static final Pattern ENVELOPE = Pattern.compile(
        "\\{\"id\":\"([\\w-]+)\"(?:,\"\\w+\":(?:\"(?:[^\"\\\\]|\\\\.)*+\"|\\d+))*?,\"tenant\":\"([\\w-]+)\",");

    /** The events that were received. */
    static class Inbox {
        private final FileChannel file;
        /** When each event came, oldest first. */
        private final Map<String, Instant> seen = new LinkedHashMap<>();
        private long length;

        Inbox(Path path) throws IOException {
            file = FileChannel.open(path, StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE);
            ByteBuffer bytes = ByteBuffer.allocate(Math.toIntExact(file.size()));
            while (bytes.hasRemaining() && file.read(bytes) >= 0) {}
            String text = new String(bytes.array(), StandardCharsets.UTF_8);
            // A crash may have left half a line, of an event that was never acknowledged.
            String whole = text.substring(0, text.lastIndexOf('\n') + 1);
            length = whole.length();
            file.truncate(length);
            whole.lines().map(line -> line.split("\t")).forEach(parts -> seen.put(parts[1] + "\t" + parts[2], Instant.parse(parts[0])));
        }

        /** Keeps an event, unless it is kept already; returns the status to answer. */
        synchronized int receive(String tenant, String id, byte[] body) throws IOException {
            Instant now = Instant.now();
            for (var oldest = seen.values().iterator(); oldest.hasNext() && oldest.next().isBefore(now.minus(REMEMBERED));) {
                oldest.remove();
            }
            String name = tenant + "\t" + id; // two tenants may have events with the same id
            if (seen.containsKey(name)) {
                return 200;
            }
            String line = now + "\t" + name + "\t" + Base64.getEncoder().encodeToString(body) + "\n";
            ByteBuffer bytes = ByteBuffer.wrap(line.getBytes(StandardCharsets.US_ASCII));
            try {
                for (long at = length; bytes.hasRemaining();) {
                    at += file.write(bytes, at);
                }
                file.force(false);
            } catch (IOException problem) {
                file.truncate(length); // released: the gateway sends it again
                throw problem;
            }
            length += line.length();
            seen.put(name, now);
            return 202;
        }
    }

    /** Whether one of the keys has signed the raw body, within five minutes. */
    static boolean isSigned(List<byte[]> keys, String id, String timestamp, String signatures, byte[] body)
        throws GeneralSecurityException {
        if (id == null || timestamp == null || signatures == null || !timestamp.matches("\\d{1,18}")) {
            return false;
        }
        if (Math.abs(Instant.now().getEpochSecond() - Long.parseLong(timestamp)) > TOLERANCE_SECONDS) {
            return false;
        }
        for (byte[] key : keys) {
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(key, "HmacSHA256"));
            mac.update((id + "." + timestamp + ".").getBytes(StandardCharsets.UTF_8));
            String expected = "v1," + Base64.getEncoder().encodeToString(mac.doFinal(body));
            for (String token : signatures.split(" ")) {
                // Compares in constant time.
                if (MessageDigest.isEqual(token.getBytes(StandardCharsets.UTF_8), expected.getBytes(StandardCharsets.UTF_8))) {
                    return true;
                }
            }
        }
        return false;
    }

    static int answer(HttpExchange request, List<byte[]> keys, Inbox inbox) {
        try {
            byte[] body = request.getRequestBody().readNBytes(BODY_BYTES_MAX + 1); // the raw bytes
            if (body.length > BODY_BYTES_MAX) {
                return 413;
            }
            var headers = request.getRequestHeaders();
            String id = headers.getFirst("webhook-id");
            if (!isSigned(keys, id, headers.getFirst("webhook-timestamp"), headers.getFirst("webhook-signature"), body)) {
                return 400;
            }
            Matcher event = ENVELOPE.matcher(new String(body, StandardCharsets.UTF_8));
            return event.lookingAt() ? inbox.receive(event.group(2), event.group(1), body) : 422;
        } catch (IOException | GeneralSecurityException problem) {
            System.err.println(problem);
            return 503; // the gateway sends it again
        }
    }

    /** A sentence for whoever looks at the attempt. */
    static String explain(int status) {
        return switch (status) {
            case 400 -> "no secret fits the signature, or its time is more than five minutes away";
            case 422 -> "not an envelope of the gateway";
            default -> "";
        };
    }

    public static void main(String[] args) throws IOException {
        List<byte[]> keys = new ArrayList<>();
        for (String secret : System.getenv("WEBHOOK_SECRET").split(",")) {
            keys.add(Base64.getDecoder().decode(secret.replaceFirst("^whsec_", "")));
        }
        Inbox inbox = new Inbox(Path.of(args[1]));
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(args[0])), 0);
        server.setExecutor(Executors.newFixedThreadPool(8));
        server.createContext("/", request -> {
            int status = answer(request, keys, inbox);
            byte[] text = explain(status).getBytes(StandardCharsets.UTF_8);
            request.sendResponseHeaders(status, text.length == 0 ? -1 : text.length);
            request.getResponseBody().write(text);
            request.close();
        });
        server.start();
    }
}
