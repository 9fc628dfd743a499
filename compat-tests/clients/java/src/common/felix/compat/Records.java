package felix.compat;

import static felix.compat.Program.check;
import static felix.compat.Program.checkEquals;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Producing and reading, as the cases need it. */
final class Records {
    private final Program program;

    Records(Program program) {
        this.program = program;
    }

    /** Properties from pairs on top of the address. */
    Properties properties(String... pairs) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", program.bootstrap);
        for (int i = 0; i < pairs.length; i += 2) {
            properties.put(pairs[i], pairs[i + 1]);
        }
        return properties;
    }

    Producer<byte[], byte[]> producer(String... pairs) {
        Properties properties = properties(pairs);
        return new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
    }

    /** A consumer whose last fetch does not keep it from closing. */
    Consumer<byte[], byte[]> consumer(String... pairs) {
        Properties properties = properties(pairs);
        properties.putIfAbsent("fetch.max.wait.ms", "20");
        return new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    /** A consumer with nothing set but these. */
    Consumer<byte[], byte[]> plainConsumer(String... pairs) {
        Properties properties = properties(pairs);
        return new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    Admin admin() {
        return Admin.create(properties());
    }

    /** Creates a topic for a case and answers its name. */
    String topic(String name, int partitions, Map<String, String> configs) throws Exception {
        String topic = program.prefix + name;
        try (Admin admin = admin()) {
            admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1).configs(configs))).all().get();
        }
        return topic;
    }

    String topic(String name, int partitions) throws Exception {
        return topic(name, partitions, Map.of());
    }

    /** Sends the values 0 to count-1 to partition 0 in one go and checks the offsets that the broker gave. */
    void send(Producer<byte[], byte[]> producer, String topic, int from, int to) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (int i = from; i < to; i++) {
            sent.add(producer.send(new ProducerRecord<>(topic, 0, null, value(i))));
        }
        producer.flush();
        for (int i = from; i < to; i++) {
            long offset = sent.get(i - from).get().offset();
            checkEquals((long) i, offset, "offset of record " + i);
        }
    }

    /** Reads partition 0 from a position on until `count` records have come. */
    List<ConsumerRecord<byte[], byte[]>> read(String topic, long from, int count) throws Exception {
        TopicPartition partition = new TopicPartition(topic, 0);
        try (Consumer<byte[], byte[]> consumer = consumer("enable.auto.commit", "false")) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, from);
            return poll(consumer, count);
        }
    }

    static List<ConsumerRecord<byte[], byte[]>> poll(Consumer<byte[], byte[]> consumer, int count) {
        List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
        long deadline = System.nanoTime() + 15_000_000_000L;
        while (records.size() < count) {
            check(System.nanoTime() < deadline, "only " + records.size() + " of " + count + " records within 15 s");
            consumer.poll(Duration.ofMillis(100)).forEach(records::add);
        }
        checkEquals(count, records.size(), "records read");
        return records;
    }

    /** Checks that records hold the values from `first` on, one after the other. */
    static void checkValues(List<ConsumerRecord<byte[], byte[]>> records, int first) {
        for (int i = 0; i < records.size(); i++) {
            checkEquals(new String(value(first + i)), new String(records.get(i).value()), "value at " + i);
            checkEquals((long) first + i, records.get(i).offset(), "offset at " + i);
        }
    }

    static byte[] value(int i) {
        return ("value-" + i + "-" + "x".repeat(i % 50)).getBytes();
    }
}
