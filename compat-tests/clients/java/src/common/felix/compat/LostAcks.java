package felix.compat;

import static felix.compat.Program.await;
import static felix.compat.Program.check;
import static felix.compat.Program.checkEquals;

import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/**
 * Every seventh acknowledgement is lost with its connection, and the broker is killed three times: the client sends again what it does not
 * know of, the broker must know what it has. Each record is there once and in order.
 */
final class LostAcks {
    private final Program program;
    private final Records records;
    private final AtomicInteger acknowledged = new AtomicInteger();
    private final AtomicInteger disordered = new AtomicInteger();
    private final AtomicLong last = new AtomicLong(-1);
    private final AtomicReference<Exception> failure = new AtomicReference<>();

    LostAcks(Program program) {
        this.program = program;
        this.records = new Records(program);
    }

    void run() throws Exception {
        String topic = records.topic("lost-acks", 1);
        int count = program.full ? 20_000 : 6_000;
        String address = field(program.inquire("lossy"), "\"address\":\"([^\"]*)\"");
        try (Producer<byte[], byte[]> producer = records.producer("bootstrap.servers", address, "batch.size", "500", "linger.ms", "1",
                "max.in.flight.requests.per.connection", "5", "retry.backoff.ms", "10", "retry.backoff.max.ms", "100",
                "reconnect.backoff.ms", "10", "reconnect.backoff.max.ms", "100", "delivery.timeout.ms", "120000")) {
            for (int i = 0; i < count; i++) {
                producer.send(new ProducerRecord<>(topic, 0, null, Records.value(i)), (sent, error) -> {
                    if (error != null) {
                        failure.compareAndSet(null, error);
                    } else {
                        acknowledged.incrementAndGet();
                        disordered.addAndGet(last.getAndSet(sent.offset()) < sent.offset() ? 0 : 1);
                    }
                });
                if (i % (count / 3) == count / 6) {
                    int before = acknowledged.get();
                    await("records to be acknowledged", 30, () -> acknowledged.get() > before || failure.get() != null);
                    program.ask("kill");
                }
            }
            producer.flush();
        }
        check(failure.get() == null, "a record failed: " + failure.get());
        checkEquals(count, acknowledged.get(), "acknowledged records");
        checkEquals(0, disordered.get(), "acknowledgements out of order");
        int lost = Integer.parseInt(field(program.inquire("lossy"), "\"lost\":([0-9]+)"));
        check(lost >= 20, "only " + lost + " acknowledgements were lost");
        Records.checkValues(records.read(topic, 0, count), 0);
        TopicPartition partition = new TopicPartition(topic, 0);
        try (Consumer<byte[], byte[]> consumer = records.consumer("enable.auto.commit", "false")) {
            checkEquals((long) count, consumer.endOffsets(List.of(partition)).get(partition), "log end");
        }
    }

    /** What a pattern finds in the harness's answer. */
    private static String field(String answer, String pattern) {
        Matcher matcher = Pattern.compile(pattern).matcher(answer);
        check(matcher.find(), "not understood: " + answer);
        return matcher.group(1);
    }
}
