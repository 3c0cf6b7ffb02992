// A handler in Java without an SDK and without dependencies: it speaks version 1 of the handler protocol. Start it with
//
//     java Checksum.java                       (compiles at each start; in production, compile it once)
//
// The kind `file.checksum` has the payload {"path": "/srv/a.png"} and the output {"sha256": "…", "bytes": 5120}.

import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

public class Checksum {
    /** The task failed for good. */
    static class Rejected extends Exception {
        Rejected(String message) {
            super(message);
        }
    }

    private final DataInputStream in;
    private final DataOutputStream out;
    private final Map<String, Thread> running = new HashMap<>();
    private boolean ending;

    Checksum(InputStream in, FileOutputStream out) {
        this.in = new DataInputStream(in);
        this.out = new DataOutputStream(out);
    }

    public static void main(String[] arguments) throws Exception {
        if (!"1".equals(System.getenv("GARENNE_HANDLER_PROTOCOL"))) {
            System.err.println("this program is started by a worker, with version 1 of the handler protocol");
            System.exit(1);
        }
        // ProcessBuilder does not pass these descriptors to programs that a handler starts.
        new Checksum(
                        new FileInputStream("/dev/fd/" + System.getenv("GARENNE_HANDLER_IN")),
                        new FileOutputStream("/dev/fd/" + System.getenv("GARENNE_HANDLER_OUT")))
                .serve(4);
    }

    /** Runs tasks until the worker says bye or closes the pipe. */
    private void serve(int concurrency) throws IOException {
        write(Map.of("type", "hello", "protocol", 1, "kinds", List.of("file.checksum"), "concurrency", concurrency), null);
        for (int i = 0; i < concurrency; i++) write(Map.of("type", "next"), null);
        try {
            while (true) {
                byte[] head = new byte[in.readInt()];
                byte[] body = new byte[in.readInt()];
                in.readFully(head);
                in.readFully(body);
                receive(new Json(head).object(), body);
            }
        } catch (EOFException end) {
            end();
        }
        // The threads of running tasks keep the program alive until they have answered.
    }

    private synchronized void receive(Map<String, Object> head, byte[] body) {
        String run = head.get("attempt") + "/" + head.get("id");
        switch (String.valueOf(head.get("type"))) {
            case "task" -> {
                Thread thread = new Thread(() -> answer(run, head, body), run);
                running.put(run, thread);
                thread.start();
            }
            case "cancel" -> {
                Thread thread = running.get(run); // null if it was answered already
                if (thread != null) thread.interrupt();
            }
            case "bye" -> end();
            default -> {} // A later version of the protocol may have more.
        }
    }

    private synchronized void end() {
        ending = true;
        if (running.isEmpty()) System.exit(0);
    }

    private void answer(String run, Map<String, Object> task, byte[] payload) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("id", task.get("id"));
        answer.put("attempt", task.get("attempt"));
        byte[] output = null;
        try {
            output = Json.write(checksum(new Json(payload).object())).getBytes(StandardCharsets.UTF_8);
            answer.put("type", "done");
        } catch (Rejected error) {
            answer.put("type", "reject");
            answer.put("error", error.getMessage());
        } catch (InterruptedException error) {
            answer.put("type", "retry");
            answer.put("error", "cancelled");
        } catch (Json.Malformed error) {
            answer.put("type", "reject");
            answer.put("reason", "invalid-payload");
            answer.put("error", error.getMessage());
        } catch (Exception error) {
            error.printStackTrace();
            answer.put("type", "retry");
            answer.put("error", error.toString());
        }
        synchronized (this) {
            running.remove(run);
            try {
                write(answer, output);
                if (!ending) write(Map.of("type", "next"), null);
            } catch (IOException error) {
                System.err.println("the worker is gone: " + error.getMessage());
                System.exit(0);
            }
            if (ending) end();
        }
    }

    private synchronized void write(Map<String, Object> head, byte[] body) throws IOException {
        byte[] text = Json.write(head).getBytes(StandardCharsets.UTF_8);
        ByteArrayOutputStream frame = new ByteArrayOutputStream();
        DataOutputStream data = new DataOutputStream(frame);
        data.writeInt(text.length);
        data.writeInt(body == null ? 0 : body.length);
        data.write(text);
        if (body != null) data.write(body);
        out.write(frame.toByteArray());
    }

    /** The handler. */
    private static Map<String, Object> checksum(Map<String, Object> payload) throws Exception {
        if (!(payload.get("path") instanceof String path)) throw new Rejected("the payload has no path");
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        long bytes = 0;
        byte[] buffer = new byte[1 << 16];
        try (InputStream file = Files.newInputStream(Path.of(path))) {
            for (int read; (read = file.read(buffer)) >= 0; bytes += read) {
                if (Thread.interrupted()) throw new InterruptedException();
                digest.update(buffer, 0, read);
            }
        } catch (NoSuchFileException error) {
            throw new Rejected(path + " does not exist");
        }
        return Map.of("sha256", HexFormat.of().formatHex(digest.digest()), "bytes", bytes);
    }

    /** As much of JSON as this program needs. Use a library for more. */
    static class Json {
        static class Malformed extends RuntimeException {
            Malformed(String message) {
                super(message);
            }
        }

        private final String text;
        private int at;

        Json(byte[] data) {
            text = new String(data, StandardCharsets.UTF_8);
        }

        @SuppressWarnings("unchecked")
        Map<String, Object> object() {
            Object found = value(0);
            skipSpace();
            if (at < text.length() || !(found instanceof Map)) throw malformed();
            return (Map<String, Object>) found;
        }

        private Malformed malformed() {
            return new Malformed("no JSON object: unexpected text at " + at);
        }

        private void skipSpace() {
            while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) at++;
        }

        private boolean take(String token) {
            skipSpace();
            boolean found = text.startsWith(token, at);
            if (found) at += token.length();
            return found;
        }

        private void expect(String token) {
            if (!take(token)) throw malformed();
        }

        private Object value(int depth) {
            if (depth > 100) throw malformed();
            if (take("{")) {
                Map<String, Object> object = new LinkedHashMap<>();
                if (take("}")) return object;
                do {
                    expect("\"");
                    String name = string();
                    expect(":");
                    object.put(name, value(depth + 1));
                } while (take(","));
                expect("}");
                return object;
            }
            if (take("[")) {
                List<Object> array = new ArrayList<>();
                if (take("]")) return array;
                do array.add(value(depth + 1));
                while (take(","));
                expect("]");
                return array;
            }
            if (take("\"")) return string();
            if (take("true")) return true;
            if (take("false")) return false;
            if (take("null")) return null;
            int start = at;
            while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0) at++;
            String number = text.substring(start, at);
            try {
                if (number.matches("-?\\d{1,18}")) return Long.parseLong(number);
                return Double.parseDouble(number);
            } catch (NumberFormatException error) {
                throw malformed();
            }
        }

        private String string() {
            StringBuilder found = new StringBuilder();
            while (at < text.length()) {
                char next = text.charAt(at++);
                if (next == '"') return found.toString();
                if (next != '\\') {
                    found.append(next);
                    continue;
                }
                if (at >= text.length()) break;
                char escaped = text.charAt(at++);
                int simple = "\"\\/bfnrt".indexOf(escaped);
                if (simple >= 0) {
                    found.append("\"\\/\b\f\n\r\t".charAt(simple));
                } else if (escaped == 'u' && text.length() - at >= 4) {
                    try {
                        found.append((char) Integer.parseInt(text.substring(at, at + 4), 16));
                    } catch (NumberFormatException error) {
                        throw malformed();
                    }
                    at += 4;
                } else {
                    throw malformed();
                }
            }
            throw malformed();
        }

        static String write(Object value) {
            if (value instanceof Map<?, ?> object) {
                List<String> members = new ArrayList<>();
                object.forEach((name, member) -> members.add(write(name.toString()) + ":" + write(member)));
                return "{" + String.join(",", members) + "}";
            }
            if (value instanceof List<?> array) return "[" + String.join(",", array.stream().map(Json::write).toList()) + "]";
            if (!(value instanceof String text)) return String.valueOf(value);
            StringBuilder found = new StringBuilder("\"");
            for (char next : text.toCharArray()) {
                if (next == '"' || next == '\\') found.append('\\').append(next);
                else if (next < ' ') found.append(String.format("\\u%04x", (int) next));
                else found.append(next);
            }
            return found.append('"').toString();
        }
    }
}
