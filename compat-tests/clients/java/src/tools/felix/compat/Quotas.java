package felix.compat;

import static felix.compat.Program.check;
import static felix.compat.Program.checkEquals;

import felix.compat.ToolBox.Output;
import java.time.Duration;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Client quotas as operators set them, and what they do to real clients. */
final class Quotas {
    private static final String CONFIGS = "org.apache.kafka.tools.ConfigCommand";
    private static final int RECORD = 10_000;

    private final Program program;
    private final Records records;
    private final ToolBox box;

    Quotas(Program program, Records records, ToolBox box) {
        this.program = program;
        this.records = records;
        this.box = box;
    }

    private Output configs(String... args) throws Exception {
        String[] all = new String[args.length + 2];
        all[0] = "--bootstrap-server";
        all[1] = program.bootstrap;
        System.arraycopy(args, 0, all, 2, args.length);
        return box.run(CONFIGS, "", all);
    }

    void configs() throws Exception {
        String client = program.prefix + "quota-client";
        String user = program.prefix + "quota-user";
        configs("--alter", "--entity-type", "clients", "--entity-name", client, "--add-config", "producer_byte_rate=1048576,consumer_byte_rate=2097152")
            .ok().has("Completed updating config for client " + client);
        configs("--alter", "--entity-type", "users", "--entity-name", user, "--entity-type", "clients", "--entity-default", "--add-config",
            "request_percentage=12.5").ok();
        configs("--alter", "--entity-type", "users", "--entity-name", user, "--add-config", "controller_mutation_rate=5").ok();
        configs("--alter", "--entity-type", "ips", "--entity-name", "10.9.8.6", "--add-config", "connection_creation_rate=500").ok();
        configs("--describe", "--entity-type", "clients", "--entity-name", client).ok()
            .line("Quota configs for client-id '" + client + "' are", "producer_byte_rate=1048576.0", "consumer_byte_rate=2097152.0");
        configs("--describe", "--entity-type", "users", "--entity-name", user).ok().line("user-principal '" + user + "' are", "controller_mutation_rate=5.0");
        configs("--describe", "--entity-type", "users", "--entity-name", user, "--entity-type", "clients", "--entity-default").ok()
            .line("user-principal '" + user + "', the default client-id are", "request_percentage=12.5");
        configs("--describe", "--entity-type", "ips").ok().line("ip '10.9.8.6' are", "connection_creation_rate=500.0");
        configs("--alter", "--entity-type", "clients", "--entity-name", client, "--delete-config", "producer_byte_rate").ok();
        configs("--describe", "--entity-type", "clients", "--entity-name", client).ok().has("consumer_byte_rate=2097152.0").lacks("producer_byte_rate");
        configs("--alter", "--entity-type", "clients", "--entity-name", client, "--add-config", "producer_byte_rate=-1").lacks("Completed updating");
        configs("--alter", "--entity-type", "clients", "--entity-name", client, "--delete-config", "consumer_byte_rate").ok();
        configs("--alter", "--entity-type", "users", "--entity-name", user, "--entity-type", "clients", "--entity-default", "--delete-config",
            "request_percentage").ok();
        configs("--alter", "--entity-type", "users", "--entity-name", user, "--delete-config", "controller_mutation_rate").ok();
        configs("--alter", "--entity-type", "ips", "--entity-name", "10.9.8.6", "--delete-config", "connection_creation_rate").ok();
        configs("--describe", "--entity-type", "clients").ok().lacks(client);
    }

    /** Seconds that it takes a client to send so many records. */
    private double produce(String client, String topic, int count) throws Exception {
        byte[] value = new byte[RECORD];
        new Random(7).nextBytes(value);
        try (Producer<byte[], byte[]> producer = records.producer("client.id", client, "batch.size", "32768", "delivery.timeout.ms", "80000")) {
            producer.partitionsFor(topic);
            long began = System.nanoTime();
            for (int i = 0; i < count; i++) {
                producer.send(new ProducerRecord<>(topic, value));
            }
            producer.flush();
            return (System.nanoTime() - began) / 1e9;
        }
    }

    /** Seconds that it takes a client to read so many records. */
    private double consume(String client, String topic, int count) throws Exception {
        try (Consumer<byte[], byte[]> consumer = records.consumer("client.id", client)) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long began = System.nanoTime();
            int got = 0;
            while (got < count) {
                check(System.nanoTime() - began < 80e9, "only " + got + " records in 80 s");
                got += consumer.poll(Duration.ofMillis(500)).count();
            }
            return (System.nanoTime() - began) / 1e9;
        }
    }

    interface Work {
        double run() throws Exception;
    }

    private static CompletableFuture<Double> aside(Work work) {
        return CompletableFuture.supplyAsync(() -> {
            try {
                return work.run();
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        });
    }

    /** Ten windows of a second allow a first burst of ten times the rate; what is beyond it is held to the rate. */
    void rates() throws Exception {
        String topic = records.topic("rates", 1);
        String slow = program.prefix + "slow";
        String fast = program.prefix + "fast";
        configs("--alter", "--entity-type", "clients", "--entity-name", slow, "--add-config", "producer_byte_rate=100000,consumer_byte_rate=200000").ok();
        CompletableFuture<Double> held = aside(() -> produce(slow, topic, 200));
        double free = produce(fast, topic, 300);
        double seconds = held.get(90, TimeUnit.SECONDS);
        // 2 MB, of which 1 MB is the burst.
        check(seconds > 6 && seconds < 25, "2 MB at 100 kB/s took " + seconds + " s");
        check(free < 6, "a producer without quota took " + free + " s for 3 MB");
        CompletableFuture<Double> reading = aside(() -> consume(slow, topic, 400));
        free = consume(fast, topic, 400);
        seconds = reading.get(90, TimeUnit.SECONDS);
        // 4 MB, of which 2 MB are the burst.
        check(seconds > 4 && seconds < 30, "4 MB at 200 kB/s took " + seconds + " s");
        check(free < 6, "a consumer without quota took " + free + " s for 4 MB");
        configs("--alter", "--entity-type", "clients", "--entity-name", slow, "--delete-config", "producer_byte_rate,consumer_byte_rate").ok();
    }

    void features() throws Exception {
        String tool = "org.apache.kafka.tools.FeatureCommand";
        String[] at = {"--bootstrap-server", program.bootstrap};
        String before = box.run(tool, "", at[0], at[1], "describe").ok().line("Feature: metadata.version");
        Output up = box.run(tool, "", at[0], at[1], "upgrade", "--feature", "metadata.version=999");
        check(up.code() == 1, "upgrading to nowhere ended with " + up.code());
        up.has("Could not upgrade metadata.version to 999");
        Output unknown = box.run(tool, "", at[0], at[1], "upgrade", "--feature", "no.such.version=1");
        check(unknown.code() == 1, "upgrading nothing ended with " + unknown.code());
        box.run(tool, "", at[0], at[1], "upgrade", "--dry-run", "--feature", "kraft.version=1").ok().has("kraft.version can be upgraded to 1");
        checkEquals(before.replaceAll("Epoch.*", ""), box.run(tool, "", at[0], at[1], "describe").ok().line("Feature: metadata.version").replaceAll("Epoch.*", ""),
            "the level");
    }
}
