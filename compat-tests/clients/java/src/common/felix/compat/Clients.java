package felix.compat;

import static felix.compat.Program.await;
import static felix.compat.Program.check;
import static felix.compat.Program.checkEquals;

import java.io.InputStream;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.header.Header;

/** The common cases with the Java client, whichever version is on the class path. */
public final class Clients {
    private final Program program;
    private final Records records;

    private Clients(Program program) {
        this.program = program;
        this.records = new Records(program);
    }

    /** The version of the client on the class path. */
    static String version() throws Exception {
        Properties properties = new Properties();
        try (InputStream in = Producer.class.getResourceAsStream("/kafka/kafka-version.properties")) {
            properties.load(in);
        }
        return properties.getProperty("version");
    }

    public static void main(String[] args) throws Exception {
        Program program = new Program(args);
        program.version(version());
        Clients clients = new Clients(program);
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            program.add("codec-" + codec, () -> clients.codec(codec));
        }
        for (String acks : List.of("0", "1", "all")) {
            program.add("acks-" + acks, () -> clients.acks(acks));
        }
        program.add("default-settings", clients::defaultSettings);
        program.add("idempotent", clients::idempotent);
        program.add("lost-acks", () -> new LostAcks(program).run());
        program.add("keys", clients::keys);
        program.add("headers-duplicate", clients::duplicateHeaders);
        program.add("null-and-empty", clients::nullAndEmpty);
        program.add("record-1mb", clients::largeRecord);
        program.add("read-start", clients::readStart);
        program.add("read-end", clients::readEnd);
        program.add("read-offset", clients::readOffset);
        program.add("read-timestamp", clients::readTimestamp);
        program.add("group-of-three", () -> new GroupOfThree(program, "").run());
        program.add("group-cooperative", () -> new GroupOfThree(program,
            "org.apache.kafka.clients.consumer.CooperativeStickyAssignor").run());
        program.add("commit-resume", clients::commitResume);
        program.add("topic-admin", clients::topicAdmin);
        program.add("auto-create", clients::autoCreate);
        program.add("compacted", clients::compacted);
        program.runAll();
    }

    private void codec(String codec) throws Exception {
        String topic = records.topic("codec-" + codec, 1);
        try (Producer<byte[], byte[]> producer = records.producer("compression.type", codec, "linger.ms", "500")) {
            records.send(producer, topic, 0, 10);
        }
        Records.checkValues(records.read(topic, 0, 10), 0);
    }

    private void acks(String acks) throws Exception {
        String topic = records.topic("acks-" + acks, 1);
        try (Producer<byte[], byte[]> producer = records.producer("acks", acks, "enable.idempotence", "false")) {
            if (acks.equals("0")) {
                for (int i = 0; i < 100; i++) {
                    RecordMetadata sent = producer.send(new ProducerRecord<>(topic, 0, null, Records.value(i))).get();
                    check(!sent.hasOffset(), "acks=0 was told an offset");
                }
            } else {
                records.send(producer, topic, 0, 100);
            }
        }
        Records.checkValues(records.read(topic, 0, 100), 0);
    }

    private void defaultSettings() throws Exception {
        String topic = records.topic("default-settings", 1);
        try (Producer<byte[], byte[]> producer = records.producer()) {
            records.send(producer, topic, 0, 100);
        }
        try (Consumer<byte[], byte[]> consumer =
                records.plainConsumer("group.id", program.prefix + "default-settings", "auto.offset.reset", "earliest")) {
            consumer.subscribe(List.of(topic));
            Records.checkValues(Records.poll(consumer, 100), 0);
        }
    }

    private void idempotent() throws Exception {
        String topic = records.topic("idempotent", 1);
        try (Producer<byte[], byte[]> producer =
                records.producer("enable.idempotence", "true", "acks", "all", "batch.size", "1000", "linger.ms", "0")) {
            records.send(producer, topic, 0, 1000);
        }
        Records.checkValues(records.read(topic, 0, 1000), 0);
    }

    /** The harness writes the topic, and says what must be left of it. */
    private void compacted() throws Exception {
        String made = program.inquire("compacted");
        String topic = Program.field(made, "topic");
        String[] survivors = Program.field(made, "survivors").split(";");
        long last = -1;
        List<ConsumerRecord<byte[], byte[]>> read = records.read(topic, 0, survivors.length);
        for (int i = 0; i < survivors.length; i++) {
            ConsumerRecord<byte[], byte[]> record = read.get(i);
            String value = record.value() == null ? "-" : new String(record.value());
            checkEquals(survivors[i], record.offset() + " " + new String(record.key()) + " " + value, "record " + i);
            last = record.offset();
        }
        TopicPartition partition = new TopicPartition(topic, 0);
        try (Consumer<byte[], byte[]> consumer = records.consumer("enable.auto.commit", "false")) {
            checkEquals(last + 1, consumer.endOffsets(List.of(partition)).get(partition), "end of the log");
        }
    }

    private void keys() throws Exception {
        String topic = records.topic("keys", 3);
        Map<String, Integer> placed = new HashMap<>();
        try (Producer<byte[], byte[]> producer = records.producer()) {
            for (int i = 0; i < 100; i++) {
                String key = "key-" + i % 20;
                RecordMetadata sent = producer.send(new ProducerRecord<>(topic, key.getBytes(), Records.value(i))).get();
                Integer before = placed.putIfAbsent(key, sent.partition());
                check(before == null || before == sent.partition(), key + " went to two partitions");
            }
        }
        try (Consumer<byte[], byte[]> consumer = records.consumer("enable.auto.commit", "false")) {
            List<TopicPartition> all = List.of(0, 1, 2).stream().map(p -> new TopicPartition(topic, p)).toList();
            consumer.assign(all);
            consumer.seekToBeginning(all);
            for (ConsumerRecord<byte[], byte[]> record : Records.poll(consumer, 100)) {
                checkEquals(placed.get(new String(record.key())), record.partition(), "partition of " + new String(record.key()));
            }
        }
        check(placed.values().stream().distinct().count() == 3, "20 keys left a partition empty");
    }

    private void duplicateHeaders() throws Exception {
        String topic = records.topic("headers-duplicate", 1);
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(topic, 0, null, Records.value(0));
        record.headers().add("a", "1".getBytes()).add("b", "2".getBytes()).add("a", "3".getBytes()).add("c", new byte[0]);
        try (Producer<byte[], byte[]> producer = records.producer()) {
            producer.send(record).get();
        }
        StringBuilder seen = new StringBuilder();
        for (Header header : records.read(topic, 0, 1).get(0).headers()) {
            seen.append(header.key()).append('=').append(new String(header.value())).append(' ');
        }
        checkEquals("a=1 b=2 a=3 c= ", seen.toString(), "headers");
    }

    private void nullAndEmpty() throws Exception {
        String topic = records.topic("null-and-empty", 1);
        byte[][] keys = {null, new byte[0], null, new byte[0], "k".getBytes()};
        byte[][] values = {null, null, new byte[0], new byte[0], null};
        try (Producer<byte[], byte[]> producer = records.producer()) {
            for (int i = 0; i < keys.length; i++) {
                producer.send(new ProducerRecord<>(topic, 0, keys[i], values[i])).get();
            }
        }
        List<ConsumerRecord<byte[], byte[]>> read = records.read(topic, 0, keys.length);
        for (int i = 0; i < keys.length; i++) {
            check(Arrays.equals(keys[i], read.get(i).key()), "key of record " + i);
            check(Arrays.equals(values[i], read.get(i).value()), "value of record " + i);
        }
    }

    private void largeRecord() throws Exception {
        String topic = records.topic("record-1mb", 1);
        byte[] large = new byte[1_000_000];
        new Random(7).nextBytes(large);
        try (Producer<byte[], byte[]> producer = records.producer("max.request.size", "4000000")) {
            producer.send(new ProducerRecord<>(topic, 0, null, large)).get();
            try {
                producer.send(new ProducerRecord<>(topic, 0, null, new byte[2_000_000])).get();
                throw new AssertionError("2,000,000 bytes were accepted");
            } catch (ExecutionException refused) {
                check(refused.getCause() instanceof RecordTooLargeException, "2,000,000 bytes: " + refused.getCause());
            }
        }
        check(Arrays.equals(large, records.read(topic, 0, 1).get(0).value()), "the record came back changed");
    }

    private String tenRecords(String name) throws Exception {
        String topic = records.topic(name, 1);
        try (Producer<byte[], byte[]> producer = records.producer("linger.ms", "500")) {
            records.send(producer, topic, 0, 10);
        }
        return topic;
    }

    private void readStart() throws Exception {
        TopicPartition partition = new TopicPartition(tenRecords("read-start"), 0);
        try (Consumer<byte[], byte[]> consumer = records.consumer("enable.auto.commit", "false")) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            Records.checkValues(Records.poll(consumer, 10), 0);
        }
    }

    private void readEnd() throws Exception {
        TopicPartition partition = new TopicPartition(tenRecords("read-end"), 0);
        try (Consumer<byte[], byte[]> consumer = records.consumer("enable.auto.commit", "false");
                Producer<byte[], byte[]> producer = records.producer()) {
            consumer.assign(List.of(partition));
            consumer.seekToEnd(List.of(partition));
            checkEquals(10L, consumer.position(partition), "the end");
            records.send(producer, partition.topic(), 10, 13);
            Records.checkValues(Records.poll(consumer, 3), 10);
        }
    }

    private void readOffset() throws Exception {
        Records.checkValues(records.read(tenRecords("read-offset"), 5, 5), 5);
    }

    private void readTimestamp() throws Exception {
        String topic = records.topic("read-timestamp", 1);
        TopicPartition partition = new TopicPartition(topic, 0);
        long start = System.currentTimeMillis() - 100_000;
        try (Producer<byte[], byte[]> producer = records.producer("linger.ms", "500")) {
            for (int i = 0; i < 10; i++) {
                producer.send(new ProducerRecord<>(topic, 0, start + i * 1000L, null, Records.value(i)));
            }
            producer.flush();
        }
        try (Consumer<byte[], byte[]> consumer = records.consumer("enable.auto.commit", "false")) {
            OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(partition, start + 4500)).get(partition);
            checkEquals(5L, found.offset(), "offset for the time");
            checkEquals(start + 5000, found.timestamp(), "timestamp found");
            checkEquals(null, consumer.offsetsForTimes(Map.of(partition, start + 1_000_000_000L)).get(partition), "the far future");
            consumer.assign(List.of(partition));
            consumer.seek(partition, found.offset());
            Records.checkValues(Records.poll(consumer, 5), 5);
        }
    }

    private void commitResume() throws Exception {
        String topic = tenRecords("commit-resume");
        String group = program.prefix + "commit-resume";
        String[] settings = {"group.id", group, "auto.offset.reset", "earliest", "enable.auto.commit", "false", "max.poll.records", "5"};
        TopicPartition partition = new TopicPartition(topic, 0);
        try (Consumer<byte[], byte[]> consumer = records.consumer(settings)) {
            consumer.subscribe(List.of(topic));
            Records.checkValues(Records.poll(consumer, 5), 0);
            consumer.commitSync(Map.of(partition, new OffsetAndMetadata(5, "half of them")));
        }
        try (Consumer<byte[], byte[]> consumer = records.consumer(settings)) {
            consumer.subscribe(List.of(topic));
            Records.checkValues(Records.poll(consumer, 5), 5);
            OffsetAndMetadata committed = consumer.committed(java.util.Set.of(partition)).get(partition);
            checkEquals(5L, committed.offset(), "committed offset");
            checkEquals("half of them", committed.metadata(), "committed metadata");
        }
    }

    private void topicAdmin() throws Exception {
        String topic = program.prefix + "topic-admin";
        try (Admin admin = records.admin()) {
            admin.createTopics(List.of(new NewTopic(topic, 3, (short) 1))).all().get();
            check(admin.listTopics().names().get().contains(topic), "the new topic is not listed");
            TopicDescription description = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
            checkEquals(3, description.partitions().size(), "partitions");
            check(!description.topicId().equals(org.apache.kafka.common.Uuid.ZERO_UUID), "no topic id");
            description.partitions().forEach(partition -> {
                checkEquals(1, partition.leader().id(), "leader");
                checkEquals(1, partition.replicas().size(), "replicas");
                checkEquals(1, partition.isr().size(), "in-sync replicas");
            });
            try {
                admin.createTopics(List.of(new NewTopic(topic, 3, (short) 1))).all().get();
                throw new AssertionError("created twice");
            } catch (ExecutionException refused) {
                check(refused.getCause() instanceof TopicExistsException, "created twice: " + refused.getCause());
            }
            admin.deleteTopics(List.of(topic)).all().get();
            await("the topic to be gone", 10, () -> {
                try {
                    return !admin.listTopics().names().get().contains(topic);
                } catch (Exception error) {
                    throw new AssertionError(error);
                }
            });
        }
    }

    private void autoCreate() throws Exception {
        String topic = program.prefix + "auto-create";
        long start = System.nanoTime();
        try (Producer<byte[], byte[]> producer = records.producer()) {
            producer.send(new ProducerRecord<>(topic, null, Records.value(0))).get();
        }
        check(Duration.ofNanos(System.nanoTime() - start).toSeconds() < 5, "took more than five seconds");
        Records.checkValues(records.read(topic, 0, 1), 0);
    }
}
