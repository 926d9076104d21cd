package bench;

import com.amazonaws.services.lambda.runtime.Context;
import com.amazonaws.services.lambda.runtime.RequestStreamHandler;
import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Base64;
import java.util.Map;

/** The function under test, in Java. See ../README.md. */
public class App implements RequestStreamHandler {
    static final Path LEDGER = Path.of(System.getenv("LEDGER"));

    static {
        if ("error".equals(System.getenv("INIT"))) {
            throw new IllegalStateException("the function can't start");
        }
        if ("exit".equals(System.getenv("INIT"))) {
            Runtime.getRuntime().halt(7);
        }
    }

    static class Declined extends RuntimeException {
        Declined(String text) {
            super(text);
        }
    }

    static class Unavailable extends RuntimeException {
        Unavailable(String text) {
            super(text);
        }
    }

    /** Appends a line in one write, which a kill can't halve or undo. */
    static void note(String what, String key, String run) throws IOException {
        String line = what + " " + key + " " + run + "\n";
        Files.writeString(LEDGER, line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    static long runs(String key) throws IOException {
        return Files.readAllLines(LEDGER).stream().filter(line -> line.startsWith("run " + key + " ")).count();
    }

    static JsonObject play(JsonObject order, String run, Context context) throws IOException, InterruptedException {
        String key = order.get("id").getAsString();
        note("run", key, run);
        JsonObject answer = new JsonObject();
        answer.addProperty("id", key);
        answer.addProperty("run", run);
        String steps = order.has("do") ? order.get("do").getAsString() : "effect";
        for (String step : steps.split(" ")) {
            if (step.startsWith("first-")) {
                if (runs(key) > 1) {
                    continue;
                }
                step = step.substring("first-".length());
            }
            String[] words = step.split(":");
            switch (words[0]) {
                case "effect" -> note("effect", key, run);
                case "sleep" -> Thread.sleep(Long.parseLong(words[1]));
                case "error" -> {
                    String text = words.length > 2 ? "x".repeat(Integer.parseInt(words[2])) : "as the event asks";
                    throw words[1].equals("Declined") ? new Declined(text) : new Unavailable(text);
                }
                case "exit" -> Runtime.getRuntime().halt(Integer.parseInt(words[1]));
                case "kill" -> {
                    new ProcessBuilder("kill", "-KILL", Long.toString(ProcessHandle.current().pid())).start();
                    Thread.sleep(60_000);
                }
                case "big" -> answer.addProperty("pad", "x".repeat(Integer.parseInt(words[1])));
                case "context" -> answer.add("context", about(context));
                case "see" -> answer.add("see", order.get(words[1]));
                case "text" -> answer.addProperty("text", true);
                case "status" -> answer.addProperty("status", Integer.parseInt(words[1]));
                default -> throw new IllegalArgumentException("unknown step: " + step);
            }
        }
        return answer;
    }

    static JsonObject about(Context context) {
        JsonObject about = new JsonObject();
        about.addProperty("request_id", context.getAwsRequestId());
        about.addProperty("arn", context.getInvokedFunctionArn());
        about.addProperty("tenant", context.getTenantId());
        // The client keeps the trace in a property on demand, and in the context on Managed Instances.
        String trace = System.getProperty("com.amazonaws.xray.traceHeader");
        about.addProperty("trace", trace != null ? trace : context.getXrayTraceId());
        var client = context.getClientContext();
        about.add("client", client == null ? JsonNull.INSTANCE : new Gson().toJsonTree(client.getCustom()));
        var identity = context.getIdentity();
        about.addProperty("identity", identity == null ? null : identity.getIdentityId());
        about.addProperty("has_time_left", context.getRemainingTimeInMillis() > 0);
        return about;
    }

    @Override
    public void handleRequest(InputStream input, OutputStream output, Context context) throws IOException {
        String run = context.getAwsRequestId() + "/" + ProcessHandle.current().pid();
        var reader = new InputStreamReader(input, StandardCharsets.UTF_8);
        JsonObject event = JsonParser.parseReader(reader).getAsJsonObject();
        try {
            output.write(handle(event, run, context).toString().getBytes(StandardCharsets.UTF_8));
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    static JsonElement handle(JsonObject event, String run, Context context) throws IOException, InterruptedException {
        if (event.has("Records")) {
            return batch(event.getAsJsonArray("Records"), run, context);
        }
        if (event.has("requestContext")) {
            String body = event.get("body").getAsString();
            if (event.has("isBase64Encoded") && event.get("isBase64Encoded").getAsBoolean()) {
                body = new String(Base64.getDecoder().decode(body), StandardCharsets.UTF_8);
            }
            return http(play(JsonParser.parseString(body).getAsJsonObject(), run, context));
        }
        return play(event, run, context);
    }

    static JsonObject http(JsonObject answer) {
        JsonElement status = answer.remove("status");
        boolean isText = answer.remove("text") != null;
        JsonObject headers = new JsonObject();
        headers.addProperty("content-type", isText ? "text/plain" : "application/json");
        JsonObject response = new JsonObject();
        response.addProperty("statusCode", status == null ? 201 : status.getAsInt());
        response.add("headers", headers);
        response.addProperty("body", isText ? "run " + answer.get("run").getAsString() : answer.toString());
        return response;
    }

    static JsonElement batch(JsonArray records, String run, Context context) throws IOException, InterruptedException {
        JsonArray failures = new JsonArray();
        boolean isWhole = System.getenv("WHOLE") != null;
        for (JsonElement each : records) {
            JsonObject record = each.getAsJsonObject();
            boolean isSqs = record.has("eventSource") && record.get("eventSource").getAsString().equals("aws:sqs");
            boolean isOrdered = !isSqs || record.getAsJsonObject("attributes").has("MessageGroupId");
            var opened = open(record);
            JsonObject failure = new JsonObject();
            failure.addProperty("itemIdentifier", opened.getKey());
            if (isOrdered && !failures.isEmpty()) {
                failures.add(failure);
                continue;
            }
            try {
                play(opened.getValue(), run, context);
            } catch (RuntimeException error) {
                if (isWhole) {
                    throw error;
                }
                failures.add(failure);
            }
        }
        if (isWhole) {
            return JsonNull.INSTANCE;
        }
        JsonObject answer = new JsonObject();
        answer.add("batchItemFailures", failures);
        return answer;
    }

    /** Returns the `itemIdentifier` of the record in a partial failure, and the order in the record's payload. */
    static Map.Entry<String, JsonObject> open(JsonObject record) {
        if (record.has("kinesis")) {
            JsonObject kinesis = record.getAsJsonObject("kinesis");
            byte[] data = Base64.getDecoder().decode(kinesis.get("data").getAsString());
            JsonObject order = JsonParser.parseString(new String(data, StandardCharsets.UTF_8)).getAsJsonObject();
            return Map.entry(kinesis.get("sequenceNumber").getAsString(), order);
        }
        if (record.has("dynamodb")) {
            JsonObject change = record.getAsJsonObject("dynamodb");
            JsonObject order = new JsonObject();
            change.getAsJsonObject("NewImage").entrySet().forEach(
                field -> order.add(field.getKey(), field.getValue().getAsJsonObject().get("S")));
            return Map.entry(change.get("SequenceNumber").getAsString(), order);
        }
        JsonObject order = JsonParser.parseString(record.get("body").getAsString()).getAsJsonObject();
        return Map.entry(record.get("messageId").getAsString(), order);
    }
}
