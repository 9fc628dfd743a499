package felix.compat;

import static felix.compat.Program.await;
import static felix.compat.Program.check;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;

/** Three members share six partitions; one joins late, the broker restarts, one leaves; nothing is lost and commits never go back. */
final class GroupOfThree {
    private static final int PARTITIONS = 6;

    private final Program program;
    private final Records records;
    private final String assignor;
    private String topic;
    private String group;
    private final Set<String> read = ConcurrentHashMap.newKeySet();
    private final Map<TopicPartition, Long> committed = new ConcurrentHashMap<>();
    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    private final AtomicInteger sent = new AtomicInteger();
    private final AtomicInteger acknowledged = new AtomicInteger();
    private volatile boolean producing = true;

    GroupOfThree(Program program, String assignor) {
        this.program = program;
        this.records = new Records(program);
        this.assignor = assignor;
    }

    void run() throws Exception {
        String name = assignor.isEmpty() ? "group-of-three" : "group-cooperative";
        topic = records.topic(name, PARTITIONS);
        group = program.prefix + name;
        Thread producer = new Thread(this::produce, "producer");
        producer.start();
        List<Member> members = new ArrayList<>();
        try {
            members.add(new Member());
            members.add(new Member());
            settle(members, "two members to share the partitions", 3, 3);
            members.add(new Member());
            settle(members, "the third member to get its share", 2, 2, 2);
            progress("records to be read before the restart");

            program.ask("restart");
            progress("records to be read after the restart");
            settle(members, "three members to be there after the restart", 2, 2, 2);

            members.remove(2).leave();
            settle(members, "two members to share again", 3, 3);
            progress("records to be read after the leave");
            producing = false;
            producer.join(30_000);
            check(!producer.isAlive(), "the producer hangs");
            check(acknowledged.get() == sent.get(), (sent.get() - acknowledged.get()) + " records were not acknowledged");
            await("all records to be read", 20, () -> {
                rethrow();
                return read.size() >= sent.get();
            });
        } finally {
            producing = false;
            for (Member member : members) {
                member.leave();
            }
        }
        rethrow();
        checkCommitted();
    }

    private void checkCommitted() {
        try (Consumer<byte[], byte[]> consumer = records.consumer("group.id", group, "enable.auto.commit", "false")) {
            List<TopicPartition> all = new ArrayList<>();
            for (int i = 0; i < PARTITIONS; i++) {
                all.add(new TopicPartition(topic, i));
            }
            Map<TopicPartition, Long> ends = consumer.endOffsets(all);
            Map<TopicPartition, OffsetAndMetadata> stored = consumer.committed(Set.copyOf(all));
            for (TopicPartition partition : all) {
                OffsetAndMetadata offset = stored.get(partition);
                long known = offset == null ? 0 : offset.offset();
                check(known == ends.get(partition), partition + ": committed " + known + ", end " + ends.get(partition));
            }
        }
    }

    private void rethrow() {
        Throwable cause = failure.get();
        if (cause != null) {
            throw new AssertionError(cause.getMessage(), cause);
        }
    }

    private void progress(String what) throws Exception {
        int target = sent.get() + 100;
        await(what, 30, () -> {
            rethrow();
            return read.size() >= target;
        });
    }

    /** Waits until the members own this many partitions each, in any order. */
    private void settle(List<Member> members, String what, Integer... shares) throws Exception {
        List<Integer> wanted = List.of(shares);
        try {
            await(what, 30, () -> {
                rethrow();
                return members.stream().map(member -> member.owned).sorted().toList().equals(wanted);
            });
        } catch (AssertionError error) {
            throw new AssertionError(error.getMessage() + "; shares are " + members.stream().map(member -> member.owned).toList());
        }
    }

    private void produce() {
        try (Producer<byte[], byte[]> producer = records.producer("acks", "all")) {
            while (producing) {
                for (int i = 0; i < 10; i++) {
                    int number = sent.getAndIncrement();
                    byte[] value = Integer.toString(number).getBytes();
                    producer.send(new ProducerRecord<>(topic, number % PARTITIONS, null, value), (metadata, error) -> {
                        if (error == null) {
                            acknowledged.incrementAndGet();
                        } else {
                            failure.compareAndSet(null, error);
                        }
                    });
                }
                producer.flush();
                Thread.sleep(5);
            }
        } catch (Throwable error) {
            failure.compareAndSet(null, error);
        }
    }

    private final class Member implements ConsumerRebalanceListener {
        private final Thread thread = new Thread(this::consume, "member");
        private volatile boolean leaving;
        private volatile int owned;
        private Consumer<byte[], byte[]> consumer;

        Member() {
            thread.start();
        }

        void leave() throws Exception {
            leaving = true;
            thread.join(20_000);
            check(!thread.isAlive(), "a member does not come to an end");
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            for (TopicPartition partition : partitions) {
                long position = consumer.position(partition);
                Long known = committed.get(partition);
                check(known == null || position >= known, partition + " goes back from " + known + " to " + position);
            }
            owned = consumer.assignment().size();
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            owned = consumer.assignment().size();
        }

        private void consume() {
            List<String> settings = new ArrayList<>(List.of("group.id", group, "auto.offset.reset", "earliest", "enable.auto.commit",
                "false", "session.timeout.ms", "10000", "heartbeat.interval.ms", "300"));
            if (!assignor.isEmpty()) {
                settings.addAll(List.of("partition.assignment.strategy", assignor));
            }
            try (Consumer<byte[], byte[]> consumer = records.consumer(settings.toArray(new String[0]))) {
                this.consumer = consumer;
                consumer.subscribe(List.of(topic), this);
                while (!leaving) {
                    Map<TopicPartition, OffsetAndMetadata> done = new HashMap<>();
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(50))) {
                        read.add(new String(record.value()));
                        done.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
                    }
                    owned = consumer.assignment().size();
                    if (!done.isEmpty()) {
                        commit(done);
                    }
                }
            } catch (Throwable error) {
                failure.compareAndSet(null, error);
            }
        }

        /** A commit may fail in a rebalance or while the broker is away; the records are then read again by whoever owns the partition. */
        private void commit(Map<TopicPartition, OffsetAndMetadata> done) {
            try {
                consumer.commitSync(done, Duration.ofSeconds(10));
                done.forEach((partition, offset) -> committed.merge(partition, offset.offset(), Math::max));
            } catch (KafkaException refused) {
                System.err.println("commit refused: " + refused);
            }
        }
    }
}
