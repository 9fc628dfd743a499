package felix.compat;

import static felix.compat.Program.await;
import static felix.compat.Program.check;
import static felix.compat.Program.checkEquals;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.ServerSocket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Comparator;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/** Kafka Connect: a distributed worker in a process of its own, from one file through a topic into another file. */
public final class Connect {
    private final Program program;
    private final Records records;
    private final HttpClient http = HttpClient.newHttpClient();
    private final List<String> internal;
    private Path folder;
    private int port;
    private Process worker;

    private Connect(Program program) {
        this.program = program;
        this.records = new Records(program);
        this.internal = Stream.of("offsets", "configs", "status").map(name -> program.prefix + name).toList();
    }

    public static void main(String[] args) throws Exception {
        Program program = new Program(args);
        program.version(Clients.version());
        program.add("file-to-file", () -> new Connect(program).fileToFile());
        program.runAll();
    }

    private void fileToFile() throws Exception {
        folder = Files.createTempDirectory("connect-");
        String topic = records.topic("lines", 1);
        try (ServerSocket free = new ServerSocket(0)) {
            port = free.getLocalPort();
        }
        try {
            write(0, 100);
            startWorker();
            put("source", "{\"connector.class\": \"org.apache.kafka.connect.file.FileStreamSourceConnector\", \"tasks.max\": \"1\", "
                + "\"file\": \"" + folder.resolve("in") + "\", \"topic\": \"" + topic + "\"}");
            put("sink", "{\"connector.class\": \"org.apache.kafka.connect.file.FileStreamSinkConnector\", \"tasks.max\": \"1\", "
                + "\"file\": \"" + folder.resolve("out") + "\", \"topics\": \"" + topic + "\"}");
            arrived("the first lines", 100);
            checkCompacted();

            program.ask("restart");
            write(100, 200);
            arrived("lines after the broker's restart", 200);
            committed("in", Files.size(folder.resolve("in")));

            worker.destroyForcibly().waitFor();
            write(200, 300);
            startWorker();
            arrived("lines after the worker's restart", 300);
            checkResumed(topic, 200);
        } finally {
            if (worker != null) {
                worker.destroyForcibly().waitFor(10, TimeUnit.SECONDS);
            }
            try (Stream<Path> files = Files.walk(folder)) {
                for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                    Files.delete(file);
                }
            }
        }
    }

    private void startWorker() throws Exception {
        Path properties = folder.resolve("worker.properties");
        Files.writeString(properties, String.join("\n",
            "bootstrap.servers=" + program.bootstrap,
            "group.id=" + program.prefix + "workers",
            "key.converter=org.apache.kafka.connect.storage.StringConverter",
            "value.converter=org.apache.kafka.connect.storage.StringConverter",
            "offset.storage.topic=" + internal.get(0), "offset.storage.replication.factor=1", "offset.storage.partitions=3",
            "config.storage.topic=" + internal.get(1), "config.storage.replication.factor=1",
            "status.storage.topic=" + internal.get(2), "status.storage.replication.factor=1", "status.storage.partitions=2",
            "offset.flush.interval.ms=200",
            // Whoever was killed leaves its groups soon.
            "consumer.session.timeout.ms=6000", "consumer.heartbeat.interval.ms=1000",
            "session.timeout.ms=10000", "heartbeat.interval.ms=1000", "scheduled.rebalance.max.delay.ms=0",
            "listeners=http://127.0.0.1:" + port) + "\n");
        worker = new ProcessBuilder(Path.of(System.getProperty("java.home"), "bin", "java").toString(), "-Xmx384m", "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1", "-Dlog4j2.configurationFile=" + System.getProperty("log4j2.configurationFile"), "-cp",
            System.getProperty("java.class.path"), "org.apache.kafka.connect.cli.ConnectDistributed", properties.toString())
            .redirectErrorStream(true).redirectOutput(folder.resolve("worker.log").toFile()).start();
        try {
            await("the worker to lead its group", 90, () -> worker.isAlive() && ask("GET", "/connectors", "") == 200);
        } catch (AssertionError late) {
            throw new AssertionError(late.getMessage() + "; " + tail());
        }
    }

    private String tail() throws IOException {
        List<String> lines = Files.readAllLines(folder.resolve("worker.log")).stream().filter(line -> !line.startsWith("\tat ")).toList();
        return String.join(" / ", lines.subList(Math.max(0, lines.size() - 8), lines.size()));
    }

    /** The status of an answer; 0 while nobody answers. */
    private int ask(String method, String path, String body) {
        HttpResponse<String> answer = answer(method, path, body);
        return answer == null ? 0 : answer.statusCode();
    }

    /** Null while nobody answers. */
    private HttpResponse<String> answer(String method, String path, String body) {
        HttpRequest request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + path)).header("Content-Type", "application/json")
            .timeout(java.time.Duration.ofSeconds(20)).method(method, HttpRequest.BodyPublishers.ofString(body)).build();
        try {
            return http.send(request, HttpResponse.BodyHandlers.ofString());
        } catch (IOException absent) {
            return null;
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private void put(String name, String config) throws Exception {
        AtomicInteger last = new AtomicInteger();
        try {
            // While the worker's group rebalances the answer is a conflict, to be tried again.
            await("the connector " + name, 60, () -> {
                int status = ask("PUT", "/connectors/" + name + "/config", config);
                last.set(status);
                check(status == 0 || status == 409 || status >= 500 || status < 300, "connector " + name + ": status " + status);
                return status == 200 || status == 201;
            });
        } catch (AssertionError late) {
            throw new AssertionError(late.getMessage() + "; status " + last + "; " + tail());
        }
    }

    private void write(int from, int to) throws Exception {
        String lines = String.join("", IntStream.range(from, to).mapToObj(i -> "line " + i + "\n").toList());
        Files.writeString(folder.resolve("in"), lines, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    /** What a worker that is killed has not committed comes twice, as promised; so wait for the commit of all that was read. */
    private void committed(String file, long position) throws Exception {
        AtomicReference<String> last = new AtomicReference<>("no answer");
        try {
            await("the source's committed offset", 60, () -> {
                HttpResponse<String> answer = answer("GET", "/connectors/source/offsets", "");
                if (answer != null) {
                    last.set(answer.body());
                }
                return answer != null && answer.statusCode() == 200 && answer.body().contains(folder.resolve(file).toString())
                    && answer.body().contains("\"position\":" + position + "}");
            });
        } catch (AssertionError late) {
            throw new AssertionError(late.getMessage() + " at " + position + "; " + last + "; " + tail());
        }
    }

    private void arrived(String what, int count) throws Exception {
        Path out = folder.resolve("out");
        Set<String> seen = new HashSet<>();
        try {
            await(what, 60, () -> {
                try {
                    if (Files.exists(out)) {
                        seen.addAll(Files.readAllLines(out));
                    }
                } catch (IOException error) {
                    throw new UncheckedIOException(error);
                }
                return IntStream.range(0, count).allMatch(i -> seen.contains("line " + i));
            });
        } catch (AssertionError late) {
            throw new AssertionError(late.getMessage() + "; " + seen.size() + " different lines; " + tail());
        }
    }

    /** Connect refuses a topic for offsets that is not compacted; it makes all three so itself. */
    private void checkCompacted() throws Exception {
        try (Admin admin = records.admin()) {
            for (String topic : internal) {
                ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
                String policy = admin.describeConfigs(List.of(resource)).all().get().get(resource).get("cleanup.policy").value();
                checkEquals("compact", policy, "cleanup.policy of " + topic);
            }
        }
    }

    /** All lines are in the topic, and those committed before the worker's end only once: it went on from its committed offset. */
    private void checkResumed(String topic, int committed) throws Exception {
        TopicPartition partition = new TopicPartition(topic, 0);
        try (Consumer<byte[], byte[]> consumer = records.consumer("enable.auto.commit", "false")) {
            consumer.assign(List.of(partition));
            int count = Math.toIntExact(consumer.endOffsets(List.of(partition)).get(partition));
            List<String> values = records.read(topic, 0, count).stream().map((ConsumerRecord<byte[], byte[]> r) -> new String(r.value())).toList();
            check(IntStream.range(0, 300).allMatch(i -> values.contains("line " + i)), "lines are missing in the topic");
            for (int i = 0; i < committed; i++) {
                String line = "line " + i;
                checkEquals(1L, values.stream().filter(line::equals).count(), "records of " + line);
            }
        }
    }
}
