package felix.compat;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.function.ToLongFunction;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Load on a cluster while the harness does something to it: ADDRESSES TOPIC PARTITIONS. It says and does the same as the program of the
 * client rdkafka does (load.rs there): a line several times a second, `reset` and `stop` on stdin, `done` or `failed` at the end.
 */
public final class Load {
    /** From one round of records, one a partition, to the next. */
    private static final int ROUND_MS = 20;
    private static final int TELL_MS = 50;

    /** What is known of one partition; guarded by the load. */
    private static final class Known {
        long acked;
        long lastAck = -1;
        long stall;
        long read;
        long committed;
    }

    private final String addresses;
    private final String topic;
    private final Known[] known;
    private volatile String failed;
    private volatile boolean over;

    private Load(String addresses, String topic, int partitions) {
        this.addresses = addresses;
        this.topic = topic;
        this.known = new Known[partitions];
        for (int i = 0; i < partitions; i++) {
            known[i] = new Known();
        }
    }

    public static void main(String[] args) {
        Load load = new Load(args[0], args[1], Integer.parseInt(args[2]));
        String end;
        try {
            long sent = load.run();
            end = "{\"done\": " + sent + ", " + load.numbers() + "}";
        } catch (Throwable failure) {
            failure.printStackTrace();
            String why = load.failed == null ? String.valueOf(failure) : load.failed;
            end = "{\"failed\": " + Program.quote(why) + "}";
        }
        load.over = true;
        System.out.println(end);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private void fail(String why) {
        if (failed == null) {
            failed = why;
        }
    }

    private void checkWell() {
        if (failed != null) {
            throw new AssertionError(failed);
        }
    }

    private synchronized long sum(ToLongFunction<Known> of) {
        long sum = 0;
        for (Known one : known) {
            sum += of.applyAsLong(one);
        }
        return sum;
    }

    /** The longest that a partition went without acknowledgement, the one that still lasts included. */
    private synchronized long stallMs() {
        long longest = 0;
        for (Known one : known) {
            long lasting = one.lastAck < 0 ? 0 : System.nanoTime() - one.lastAck;
            longest = Math.max(longest, Math.max(one.stall, lasting));
        }
        return longest / 1_000_000;
    }

    /** How long the partition that waits longest has been without acknowledgement. */
    private synchronized long lastingMs() {
        long longest = 0;
        for (Known one : known) {
            longest = Math.max(longest, one.lastAck < 0 ? 0 : System.nanoTime() - one.lastAck);
        }
        return longest / 1_000_000;
    }

    private synchronized void reset() {
        for (Known one : known) {
            one.stall = 0;
            one.lastAck = one.lastAck < 0 ? -1 : System.nanoTime();
        }
    }

    private String numbers() {
        return "\"acked\": " + sum(one -> one.acked) + ", \"read\": " + sum(one -> one.read) + ", \"stall_ms\": " + stallMs()
            + ", \"lasting_ms\": " + lastingMs();
    }

    private Properties properties(String... pairs) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", addresses);
        properties.put("reconnect.backoff.ms", "20");
        properties.put("reconnect.backoff.max.ms", "200");
        properties.put("retry.backoff.ms", "20");
        properties.put("retry.backoff.max.ms", "200");
        properties.put("socket.connection.setup.timeout.ms", "2000");
        for (int i = 0; i < pairs.length; i += 2) {
            properties.put(pairs[i], pairs[i + 1]);
        }
        return properties;
    }

    private Consumer<byte[], byte[]> consumer() {
        return new KafkaConsumer<>(properties("group.id", topic + "-group", "enable.auto.commit", "false", "auto.offset.reset", "none",
            "session.timeout.ms", "30000", "heartbeat.interval.ms", "500", "fetch.max.wait.ms", "100", "request.timeout.ms", "3000",
            "default.api.timeout.ms", "30000"), new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private long run() throws Exception {
        // The group begins at the start of each partition: that is committed before anybody reads.
        try (Consumer<byte[], byte[]> committer = consumer()) {
            Map<TopicPartition, OffsetAndMetadata> start = new HashMap<>();
            for (int i = 0; i < known.length; i++) {
                start.put(new TopicPartition(topic, i), new OffsetAndMetadata(0));
            }
            committer.commitSync(start);
        }
        List<Thread> members = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            Thread member = new Thread(this::member, "member-" + i);
            member.setDaemon(true);
            member.start();
            members.add(member);
        }
        try (Producer<byte[], byte[]> producer = new KafkaProducer<>(properties("acks", "all", "enable.idempotence", "true", "linger.ms",
                "1", "delivery.timeout.ms", "120000", "request.timeout.ms", "3000", "max.block.ms", "60000"), new ByteArraySerializer(),
                new ByteArraySerializer())) {
            long[] sent = produce(producer);
            producer.flush();
            checkWell();
            long total = 0;
            for (long one : sent) {
                total += one;
            }
            Program.checkEquals(total, sum(one -> one.acked), "acknowledged records");
            long all = total;
            await("the group to read everything", 45, () -> sum(one -> one.read) == all);
            over = true;
            compare(sent);
            return total;
        }
    }

    private void await(String what, int seconds, BooleanSupplier condition) throws Exception {
        Program.await(what, seconds, () -> {
            checkWell();
            return condition.getAsBoolean();
        });
    }

    /** Sends until it is told to stop; how many records each partition got. */
    private long[] produce(Producer<byte[], byte[]> producer) throws Exception {
        BlockingQueue<String> orders = orders();
        long[] sent = new long[known.length];
        long resets = 0;
        long told = System.nanoTime();
        while (true) {
            for (int partition = 0; partition < sent.length; partition++) {
                send(producer, partition, sent[partition]++);
            }
            if (System.nanoTime() - told >= TELL_MS * 1_000_000L) {
                told = System.nanoTime();
                System.out.println("{" + numbers() + ", \"resets\": " + resets + "}");
            }
            checkWell();
            // The pace, and what the harness says meanwhile.
            String order = orders.poll(ROUND_MS, TimeUnit.MILLISECONDS);
            if ("reset".equals(order)) {
                reset();
                resets++;
            } else if ("stop".equals(order)) {
                return sent;
            } else if (order != null) {
                throw new AssertionError("not understood, or the harness is gone: " + order);
            }
        }
    }

    private void send(Producer<byte[], byte[]> producer, int partition, long number) {
        byte[] value = ByteBuffer.allocate(100).putLong(number).array();
        producer.send(new ProducerRecord<>(topic, partition, null, value), (stored, error) -> {
            if (error != null) {
                fail("record " + number + " of " + partition + " was not delivered: " + error);
                return;
            }
            synchronized (this) {
                Known one = known[partition];
                one.acked++;
                long now = System.nanoTime();
                if (one.lastAck >= 0) {
                    one.stall = Math.max(one.stall, now - one.lastAck);
                }
                one.lastAck = now;
            }
            // The next leader may be asked for two batches that both are there, and lead between the one and the other: then the later
            // one is acknowledged first.
            if (stored.offset() != number) {
                fail("record " + number + " of " + partition + " acknowledged at " + stored.offset());
            }
        });
    }

    private static BlockingQueue<String> orders() {
        BlockingQueue<String> orders = new LinkedBlockingQueue<>();
        Thread reader = new Thread(() -> {
            try (BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
                for (String line = in.readLine(); line != null; line = in.readLine()) {
                    orders.add(line);
                }
            } catch (Exception gone) {
                gone.printStackTrace();
            }
            orders.add("end");
        });
        reader.setDaemon(true);
        reader.start();
        return orders;
    }

    /** A member of the group, until all is over. */
    private void member() {
        try (Consumer<byte[], byte[]> consumer = consumer()) {
            Map<Integer, Long> floors = new HashMap<>();
            Map<TopicPartition, OffsetAndMetadata> pending = new HashMap<>();
            consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
                    pending.keySet().removeAll(revoked);
                }

                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> given) {
                    synchronized (Load.this) {
                        given.forEach(one -> floors.put(one.partition(), known[one.partition()].committed));
                    }
                }
            });
            long committed = System.nanoTime();
            while (!over) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(50))) {
                    read(record, floors.getOrDefault(record.partition(), 0L));
                    pending.put(new TopicPartition(topic, record.partition()), new OffsetAndMetadata(record.offset() + 1));
                }
                if (!pending.isEmpty() && System.nanoTime() - committed > 200_000_000L) {
                    committed = System.nanoTime();
                    commit(consumer, pending);
                }
            }
        } catch (Throwable failure) {
            if (!over) {
                failure.printStackTrace();
                fail("a member of the group ended: " + failure);
            }
        }
    }

    private synchronized void read(ConsumerRecord<byte[], byte[]> record, long floor) {
        Known one = known[record.partition()];
        String place = record.partition() + "/" + record.offset();
        long number = ByteBuffer.wrap(record.value()).getLong();
        Program.check(number == record.offset(), "record " + number + " is at " + place);
        Program.check(record.offset() >= floor, place + " was read again: " + floor + " was committed");
        Program.check(record.offset() <= one.read, place + " was read, " + one.read + " was skipped");
        one.read = Math.max(one.read, record.offset() + 1);
    }

    private void commit(Consumer<byte[], byte[]> consumer, Map<TopicPartition, OffsetAndMetadata> pending) {
        Map<TopicPartition, OffsetAndMetadata> places = new HashMap<>(pending);
        try {
            consumer.commitSync(places);
        } catch (RetriableException | CommitFailedException again) {
            // A rebalance, or a coordinator that is away for long: with the next records.
            System.err.println("member: commit: " + again);
            return;
        }
        synchronized (this) {
            places.forEach((place, offset) -> {
                Known one = known[place.partition()];
                one.committed = Math.max(one.committed, offset.offset());
            });
        }
        places.keySet().forEach(place -> pending.remove(place));
    }

    /** Every record is there exactly once and in order. */
    private void compare(long[] sent) {
        try (Consumer<byte[], byte[]> consumer = consumer()) {
            for (int i = 0; i < sent.length; i++) {
                TopicPartition partition = new TopicPartition(topic, i);
                consumer.assign(List.of(partition));
                long end = consumer.endOffsets(List.of(partition)).get(partition);
                Program.checkEquals(sent[i], end, "end of " + i);
                consumer.seek(partition, 0);
                long next = 0;
                long deadline = System.nanoTime() + 20_000_000_000L;
                while (next < end) {
                    Program.check(System.nanoTime() < deadline, "read " + next + " of " + end + " records of " + i + " in time");
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                        long number = ByteBuffer.wrap(record.value()).getLong();
                        Program.check(number == next && record.offset() == next,
                            "record " + number + " is at " + i + "/" + record.offset() + ", " + next + " is due");
                        next++;
                    }
                }
            }
        }
    }
}
