package felix.compat;

import static felix.compat.Program.await;
import static felix.compat.Program.check;
import static felix.compat.Program.checkEquals;

import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Stream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.StateRestoreListener;

/** Kafka Streams: a word count whose state is in a changelog topic of the broker. */
public final class Streams {
    private final Program program;
    private final Records records;
    private final AtomicLong restored = new AtomicLong();
    private final Map<String, Long> sent = new TreeMap<>();

    private Streams(Program program) {
        this.program = program;
        this.records = new Records(program);
    }

    public static void main(String[] args) throws Exception {
        Program program = new Program(args);
        program.version(Clients.version());
        program.add("word-count", () -> new Streams(program).wordCount());
        program.runAll();
    }

    private void wordCount() throws Exception {
        String in = records.topic("in", 2);
        String out = records.topic("out", 2);
        String application = program.prefix + "word-count";
        Path state = Files.createTempDirectory("streams-");
        try {
            KafkaStreams first = start(application, in, out, state);
            send(in, 40);
            counted("the first counts", out);
            first.close(Duration.ofSeconds(20));
            checkCompacted(application + "-counts-changelog");

            // The local state is gone, the broker has been restarted: what was counted comes back from the changelog.
            clear(state);
            program.ask("restart");
            restored.set(0);
            KafkaStreams second = start(application, in, out, state);
            send(in, 40);
            counted("counts that go on from those restored", out);
            check(restored.get() > 0, "nothing was restored");

            // A broker that is killed under a running application.
            program.ask("kill");
            send(in, 40);
            counted("counts after kill -9", out);
            second.close(Duration.ofSeconds(20));
        } finally {
            clear(state);
            Files.deleteIfExists(state);
        }
    }

    private KafkaStreams start(String application, String in, String out, Path state) throws Exception {
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> lines = builder.stream(in);
        lines.flatMapValues(line -> Arrays.asList(line.split(" "))).groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.as("counts")).toStream().to(out, Produced.with(Serdes.String(), Serdes.Long()));
        Topology topology = builder.build();
        Properties properties = records.properties(StreamsConfig.APPLICATION_ID_CONFIG, application, StreamsConfig.STATE_DIR_CONFIG,
            state.toString(), StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.AT_LEAST_ONCE, StreamsConfig.COMMIT_INTERVAL_MS_CONFIG,
            "100", StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, "0", "auto.offset.reset", "earliest", "session.timeout.ms", "10000",
            "heartbeat.interval.ms", "500");
        properties.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        properties.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        KafkaStreams streams = new KafkaStreams(topology, properties);
        streams.setGlobalStateRestoreListener(new StateRestoreListener() {
            @Override
            public void onRestoreStart(TopicPartition partition, String store, long from, long to) { }

            @Override
            public void onBatchRestored(TopicPartition partition, String store, long end, long count) { }

            @Override
            public void onRestoreEnd(TopicPartition partition, String store, long count) {
                restored.addAndGet(count);
            }
        });
        streams.start();
        await("the application to run", 60, () -> streams.state() == KafkaStreams.State.RUNNING);
        return streams;
    }

    /** Lines of two words, one of ten and one that all share. */
    private void send(String topic, int lines) {
        try (Producer<byte[], byte[]> producer = records.producer()) {
            for (int i = 0; i < lines; i++) {
                String word = "word-" + i % 10;
                producer.send(new ProducerRecord<>(topic, i % 2, null, (word + " all").getBytes()));
                sent.merge(word, 1L, Long::sum);
                sent.merge("all", 1L, Long::sum);
            }
        }
    }

    /** Waits until the last count of every word is at least what was sent: at least once may count twice, but never forgets. */
    private void counted(String what, String topic) throws Exception {
        Map<String, Long> last = new TreeMap<>();
        try (Consumer<byte[], byte[]> consumer = records.consumer("enable.auto.commit", "false")) {
            List<TopicPartition> all = List.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1));
            consumer.assign(all);
            consumer.seekToBeginning(all);
            try {
                await(what, 60, () -> {
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                        last.put(new String(record.key()), ByteBuffer.wrap(record.value()).getLong());
                    }
                    return sent.entrySet().stream().allMatch(word -> last.getOrDefault(word.getKey(), 0L) >= word.getValue());
                });
            } catch (AssertionError late) {
                throw new AssertionError(late.getMessage() + "; sent " + sent + ", counted " + last);
            }
        }
    }

    private void checkCompacted(String topic) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        try (Admin admin = records.admin()) {
            String policy = admin.describeConfigs(List.of(resource)).all().get().get(resource).get("cleanup.policy").value();
            checkEquals("compact", policy, "cleanup.policy of " + topic);
        }
    }

    private static void clear(Path folder) throws Exception {
        try (Stream<Path> files = Files.walk(folder)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).filter(file -> !file.equals(folder)).toList()) {
                Files.delete(file);
            }
        }
    }
}
