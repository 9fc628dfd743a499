package felix.compat;

import static felix.compat.Program.await;
import static felix.compat.Program.check;
import static felix.compat.Program.checkEquals;

import felix.compat.ToolBox.Output;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.producer.Producer;

/** Kafka's own command-line tools, by their main classes, with assertions on what they print. */
public final class Tools {
    private static final String PACKAGE = "org.apache.kafka.tools.";

    private final Program program;
    private final Records records;
    private final ToolBox box = new ToolBox();

    private Tools(Program program) {
        this.program = program;
        this.records = new Records(program);
    }

    public static void main(String[] args) throws Exception {
        Program program = new Program(args);
        program.version(Clients.version());
        Tools tools = new Tools(program);
        program.add("kafka-topics", tools::topics);
        program.add("kafka-topics-refusals", tools::topicRefusals);
        program.add("kafka-configs", tools::configs);
        program.add("kafka-configs-broker", tools::brokerConfigs);
        program.add("kafka-console-producer-consumer", tools::console);
        program.add("kafka-consumer-groups", tools::consumerGroups);
        program.add("kafka-groups", tools::groups);
        program.add("kafka-get-offsets", tools::getOffsets);
        program.add("kafka-delete-records", tools::deleteRecords);
        program.add("kafka-log-dirs", tools::logDirs);
        program.add("kafka-broker-api-versions", tools::apiVersions);
        program.add("kafka-cluster", tools::cluster);
        program.add("kafka-features", tools::features);
        program.add("kafka-metadata-quorum", tools::quorum);
        program.add("kafka-producer-perf-test", tools::producerPerformance);
        program.add("kafka-consumer-perf-test", tools::consumerPerformance);
        program.add("kafka-verifiable", tools::verifiable);
        program.add("kafka-dump-log", tools::dumpLog);
        program.add("kafka-dump-log-short", tools::dumpShort);
        program.add("kafka-dump-log-after", tools::dumpAfter);
        program.add("kafka-dump-log-compacted", tools::dumpCompacted);
        program.add("kafka-dump-log-offsets", tools::dumpOffsets);
        program.add("kafka-reassign-partitions", tools::reassignments);
        program.add("kafka-acls", tools::acls);
        program.add("kafka-client-metrics", tools::clientMetrics);
        Quotas quotas = new Quotas(program, tools.records, tools.box);
        program.add("kafka-configs-quotas", quotas::configs);
        program.add("kafka-quota-rates", quotas::rates);
        program.add("kafka-features-update", quotas::features);
        program.runAll();
    }

    private Output tool(String name, String... args) throws Exception {
        return toolWithInput(name, "", args);
    }

    private Output toolWithInput(String name, String input, String... args) throws Exception {
        String[] all = new String[args.length + 2];
        all[0] = "--bootstrap-server";
        all[1] = program.bootstrap;
        System.arraycopy(args, 0, all, 2, args.length);
        return box.run(PACKAGE + name, input, all);
    }

    /** For the tools whose first argument is a verb. */
    private Output verb(String name, String verb, String... args) throws Exception {
        String[] all = new String[args.length + 3];
        all[0] = verb;
        all[1] = "--bootstrap-server";
        all[2] = program.bootstrap;
        System.arraycopy(args, 0, all, 3, args.length);
        return box.run(PACKAGE + name, "", all);
    }

    private String filled(String name, int partitions, int count) throws Exception {
        String topic = records.topic(name, partitions);
        try (Producer<byte[], byte[]> producer = records.producer("linger.ms", "100")) {
            records.send(producer, topic, 0, count);
        }
        return topic;
    }

    private void topics() throws Exception {
        String topic = program.prefix + "topics";
        tool("TopicCommand", "--create", "--topic", topic, "--partitions", "3", "--replication-factor", "1",
            "--config", "retention.ms=3600000").ok().has("Created topic " + topic);
        tool("TopicCommand", "--create", "--topic", topic, "--if-not-exists").ok();
        tool("TopicCommand", "--list").ok().has(topic);
        Output described = tool("TopicCommand", "--describe", "--topic", topic).ok();
        String head = described.line("Topic: " + topic, "PartitionCount");
        check(head.contains("PartitionCount: 3") && head.contains("ReplicationFactor: 1"), head);
        check(head.contains("retention.ms=3600000"), head);
        check(head.matches(".*TopicId: [A-Za-z0-9_-]{22} .*"), "no topic id: " + head);
        for (int i = 0; i < 3; i++) {
            String line = described.line("Topic: " + topic, "Partition: " + i);
            check(line.contains("Leader: 1") && line.contains("Replicas: 1") && line.contains("Isr: 1"), line);
        }
        tool("TopicCommand", "--alter", "--topic", topic, "--partitions", "5").ok();
        tool("TopicCommand", "--describe", "--topic", topic).ok().has("PartitionCount: 5").line("Partition: 4", "Leader: 1");
        for (String filter : List.of("--under-replicated-partitions", "--unavailable-partitions", "--under-min-isr-partitions")) {
            checkEquals("", tool("TopicCommand", "--describe", filter).ok().out().trim(), filter);
        }
        tool("TopicCommand", "--describe", "--at-min-isr-partitions", "--topic", topic).ok().has("Partition: 0");
        tool("TopicCommand", "--delete", "--topic", topic).ok();
        await("the topic to be gone", 10, () -> {
            try {
                return !tool("TopicCommand", "--list").ok().out().contains(topic);
            } catch (Exception error) {
                throw new AssertionError(error);
            }
        });
    }

    private void topicRefusals() throws Exception {
        String topic = records.topic("refusals", 2);
        tool("TopicCommand", "--create", "--topic", topic).has("already exists");
        tool("TopicCommand", "--create", "--topic", "no spaces").has("ASCII alphanumerics");
        tool("TopicCommand", "--create", "--topic", program.prefix + "rf", "--replication-factor", "3").has("replication factor", "3").lacks("Created topic");
        tool("TopicCommand", "--create", "--topic", program.prefix + "zero", "--partitions", "0").lacks("Created topic");
        tool("TopicCommand", "--create", "--topic", program.prefix + "bad", "--config", "retention.ms=soon")
            .has("Invalid value soon for configuration retention.ms");
        tool("TopicCommand", "--alter", "--topic", topic, "--partitions", "1").has("2");
        tool("TopicCommand", "--describe", "--topic", program.prefix + "absent").has("does not exist as expected");
        tool("TopicCommand", "--delete", "--topic", program.prefix + "absent").has("does not exist as expected");
    }

    private void configs() throws Exception {
        String topic = records.topic("configs", 1);
        String[] entity = {"--entity-type", "topics", "--entity-name", topic};
        config(entity, "--alter", "--add-config", "retention.ms=7200000,cleanup.policy=[compact,delete]").has("Completed updating config");
        Output described = config(entity, "--describe").ok();
        check(described.line("retention.ms").contains("retention.ms=7200000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=7200000"),
            described.line("retention.ms"));
        check(described.line("cleanup.policy").contains("cleanup.policy=compact,delete"), described.line("cleanup.policy"));
        described.lacks("segment.bytes");
        Output all = config(entity, "--describe", "--all").ok();
        all.line("segment.bytes=1073741824", "DEFAULT_CONFIG:log.segment.bytes=1073741824");
        for (String name : List.of("compression.type=producer", "max.message.bytes=1048588", "min.insync.replicas=1", "flush.messages=",
                "message.timestamp.type=CreateTime", "unclean.leader.election.enable=false", "retention.bytes=-1",
                "message.timestamp.after.max.ms=3600000", "remote.storage.enable=false", "index.interval.bytes=4096")) {
            all.line(name);
        }
        config(entity, "--alter", "--delete-config", "cleanup.policy").has("Completed updating config");
        config(entity, "--describe").ok().lacks("cleanup.policy").has("retention.ms=7200000");
        config(entity, "--alter", "--add-config", "retention.ms=never").has("Invalid value never for configuration retention.ms");
        config(entity, "--alter", "--add-config", "no.such.config=1").lacks("Completed updating");
        config(entity, "--describe").ok().has("retention.ms=7200000").lacks("no.such.config");
    }

    private Output config(String[] entity, String... args) throws Exception {
        String[] all = new String[entity.length + args.length];
        System.arraycopy(args, 0, all, 0, args.length);
        System.arraycopy(entity, 0, all, args.length, entity.length);
        return tool("ConfigCommand", all);
    }

    private void brokerConfigs() throws Exception {
        String[] broker = {"--entity-type", "brokers", "--entity-name", "1"};
        String[] defaults = {"--entity-type", "brokers", "--entity-default"};
        Output all = config(broker, "--describe", "--all").ok();
        for (String name : List.of("node.id=1", "num.partitions=1", "auto.create.topics.enable=true", "delete.topic.enable=true",
                "offsets.retention.minutes=10080", "log.retention.hours=168", "message.max.bytes=1048588", "log.segment.bytes=1073741824",
                "group.max.session.timeout.ms=1800000", "default.replication.factor=1")) {
            all.line(name);
        }
        config(broker, "--alter", "--add-config", "log.retention.ms=86400000").has("Completed updating config");
        config(broker, "--describe").ok().line("log.retention.ms=86400000", "DYNAMIC_BROKER_CONFIG");
        String topic = records.topic("broker-configs", 1);
        config(new String[] {"--entity-type", "topics", "--entity-name", topic}, "--describe", "--all").ok()
            .line("retention.ms=86400000", "log.retention.ms=86400000");
        config(broker, "--alter", "--delete-config", "log.retention.ms").has("Completed updating config");
        config(defaults, "--alter", "--add-config", "message.max.bytes=2000000").has("Completed updating");
        config(defaults, "--describe").ok().line("message.max.bytes=2000000", "DYNAMIC_DEFAULT_BROKER_CONFIG");
        config(defaults, "--alter", "--delete-config", "message.max.bytes").has("Completed updating");
        config(broker, "--describe").ok().lacks("log.retention.ms=86400000");
        config(broker, "--alter", "--add-config", "node.id=7").lacks("Completed updating");
    }

    private void console() throws Exception {
        String topic = records.topic("console", 1);
        toolWithInput("ConsoleProducer", "k1:first\nk2:second\nk1:third\n", "--topic", topic, "--reader-property", "parse.key=true",
            "--reader-property", "key.separator=:").ok();
        toolWithInput("ConsoleProducer", "k3:fourth\n", "--topic", topic, "--reader-property", "parse.key=true", "--reader-property",
            "key.separator=:", "--compression-codec", "zstd").ok();
        Output read = tool("consumer.ConsoleConsumer", "--topic", topic, "--from-beginning", "--max-messages", "4", "--timeout-ms", "10000",
            "--formatter-property", "print.key=true", "--formatter-property", "print.offset=true", "--formatter-property",
            "print.partition=true").ok();
        checkEquals("Partition:0\tOffset:0\tk1\tfirst\nPartition:0\tOffset:1\tk2\tsecond\nPartition:0\tOffset:2\tk1\tthird\n"
            + "Partition:0\tOffset:3\tk3\tfourth\n", read.out(), "what the console consumer prints");
        String group = program.prefix + "console";
        tool("consumer.ConsoleConsumer", "--topic", topic, "--from-beginning", "--max-messages", "2", "--timeout-ms", "10000", "--group",
            group).ok().has("first", "second");
        tool("consumer.ConsoleConsumer", "--topic", topic, "--partition", "0", "--offset", "2", "--max-messages", "1", "--timeout-ms",
            "10000").ok().has("third").lacks("second");
    }

    private void consumerGroups() throws Exception {
        String topic = filled("groups", 2, 10);
        String group = program.prefix + "groups";
        String command = "consumer.group.ConsumerGroupCommand";
        AtomicBoolean done = new AtomicBoolean();
        AtomicBoolean committed = new AtomicBoolean();
        Thread member = new Thread(() -> {
            try (Consumer<byte[], byte[]> consumer = records.consumer("group.id", group, "client.id", "the-member", "auto.offset.reset",
                    "earliest", "enable.auto.commit", "false", "max.poll.records", "4")) {
                consumer.subscribe(List.of(topic));
                Records.poll(consumer, 4);
                consumer.commitSync();
                committed.set(true);
                consumer.pause(consumer.assignment());
                while (!done.get()) {
                    consumer.poll(java.time.Duration.ofMillis(50));
                }
            }
        });
        member.start();
        try {
            await("the member to commit", 20, committed::get);
            tool(command, "--list").ok().has(group);
            tool(command, "--list", "--state").ok().line(group, "Stable");
            Output described = tool(command, "--describe", "--group", group).ok();
            String line = described.line(group, topic + " ", " 10 ");
            check(line.contains(" 4 10 6 the-member-") && line.contains(" /127.0.0.1 the-member"), line);
            Output members = tool(command, "--describe", "--group", group, "--members", "--verbose").ok();
            check(members.line("the-member").matches(".*/127.0.0.1 .*the-member 2 .*"), members.line("the-member"));
            String state = tool(command, "--describe", "--group", group, "--state").ok().line(group);
            check(state.contains("range") && state.contains("Stable") && state.endsWith("1"), state);
            tool(command, "--delete", "--group", group).has("is not empty");
            tool(command, "--delete-offsets", "--group", group, "--topic", topic).has("is actively subscribed");
        } finally {
            done.set(true);
            member.join(20_000);
        }
        tool(command, "--describe", "--group", group, "--state").ok().has("Empty");
        tool(command, "--reset-offsets", "--group", group, "--topic", topic, "--to-offset", "7", "--execute").ok();
        tool(command, "--describe", "--group", group).ok().line(topic + " ", " 7 ", "10 ");
        tool(command, "--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute").ok();
        tool(command, "--describe", "--group", group, "--offsets").ok().line(topic + " ", " 0 ");
        tool(command, "--delete-offsets", "--group", group, "--topic", topic + ":0").ok().has("Successful");
        tool(command, "--delete", "--group", group).ok().has("Deletion of requested consumer groups");
        tool(command, "--list").ok().lacks(group);
        tool(command, "--describe", "--group", group).has("not found");
    }

    private void groups() throws Exception {
        String topic = filled("groups-list", 1, 3);
        String group = program.prefix + "groups-list";
        tool("consumer.ConsoleConsumer", "--topic", topic, "--from-beginning", "--max-messages", "3", "--timeout-ms", "10000", "--group", group)
            .ok();
        String line = tool("GroupsCommand", "--list").ok().line(group);
        checkEquals(group + " Classic consumer", line, "the group's line");
        tool("GroupsCommand", "--list", "--consumer").ok().has(group);
        tool("GroupsCommand", "--list", "--share").ok().lacks(group);
    }

    private void getOffsets() throws Exception {
        String topic = filled("get-offsets", 2, 10);
        checkEquals(topic + ":0:10\n" + topic + ":1:0\n", tool("GetOffsetShell", "--topic", topic).ok().out(), "latest");
        checkEquals(topic + ":0:0\n" + topic + ":1:0\n", tool("GetOffsetShell", "--topic", topic, "--time", "-2").ok().out(), "earliest");
        tool("GetOffsetShell", "--topic", topic, "--time", "max-timestamp").ok().line(topic + ":0:");
        tool("GetOffsetShell", "--topic-partitions", topic + ":0", "--time", "1").ok().has(topic + ":0:0");
        tool("GetOffsetShell", "--topic", topic, "--time", "earliest-local").ok().has(topic + ":0:0");
        tool("GetOffsetShell", "--topic", topic, "--time", "-5").ok();
        tool("GetOffsetShell").ok().has(topic + ":0:10");
    }

    private void deleteRecords() throws Exception {
        String topic = filled("delete-records", 1, 10);
        Path file = Files.createTempFile("delete-records", ".json");
        Files.writeString(file, "{\"partitions\": [{\"topic\": \"" + topic + "\", \"partition\": 0, \"offset\": 4}], \"version\": 1}");
        tool("DeleteRecordsCommand", "--offset-json-file", file.toString()).ok().has("low_watermark: 4");
        tool("GetOffsetShell", "--topic", topic, "--time", "-2").ok().has(topic + ":0:4");
        Output read = tool("consumer.ConsoleConsumer", "--topic", topic, "--from-beginning", "--max-messages", "1", "--timeout-ms", "10000",
            "--formatter-property", "print.offset=true").ok();
        read.has("Offset:4");
        Files.writeString(file, "{\"partitions\": [{\"topic\": \"" + topic + "\", \"partition\": 0, \"offset\": 11}], \"version\": 1}");
        tool("DeleteRecordsCommand", "--offset-json-file", file.toString()).has("not within the range");
        Files.delete(file);
    }

    private void logDirs() throws Exception {
        String topic = filled("log-dirs", 1, 10);
        Output output = tool("LogDirsCommand", "--describe", "--topic-list", topic).ok();
        String line = output.line("\"partition\":\"" + topic + "-0\"");
        check(line.contains("\"broker\":1") && line.contains("\"error\":null") && line.contains("\"offsetLag\":0"), line);
        check(line.matches(".*\"size\":[1-9][0-9]*.*") && line.contains("\"isFuture\":false"), line);
        tool("LogDirsCommand", "--describe").ok().has("\"partition\":\"" + topic + "-0\"");
    }

    private void apiVersions() throws Exception {
        Output output = tool("BrokerApiVersionsCommand").ok();
        output.line(program.bootstrap, "id: 1");
        for (String name : List.of("Produce(0)", "Fetch(1)", "ListOffsets(2)", "Metadata(3)", "OffsetCommit(8)", "JoinGroup(11)",
                "ApiVersions(18)", "CreateTopics(19)", "InitProducerId(22)", "DescribeCluster(60)")) {
            check(!output.line(name + ":").contains("UNSUPPORTED"), output.line(name + ":"));
        }
        check(output.line("Produce(0):").matches("Produce\\(0\\): 0 to 1\\d \\[usable: 1\\d\\],"), output.line("Produce(0):"));
    }

    private void cluster() throws Exception {
        String id = verb("ClusterTool", "cluster-id").ok().line("Cluster ID: ").substring("Cluster ID: ".length());
        check(id.matches("[A-Za-z0-9_-]{22}"), "cluster id " + id);
        String[] address = program.bootstrap.split(":");
        verb("ClusterTool", "list-endpoints").ok().line("1", address[0], address[1]);
    }

    private void features() throws Exception {
        // This tool wants its option before the verb.
        Output output = box.run(PACKAGE + "FeatureCommand", "", "--bootstrap-server", program.bootstrap, "describe").ok();
        check(output.line("Feature: metadata.version").matches(".*FinalizedVersionLevel: 4\\.\\d-IV\\d.*Epoch: \\d+"),
            output.line("Feature: metadata.version"));
        output.line("Feature: kraft.version");
    }

    private void quorum() throws Exception {
        Output status = box.run(PACKAGE + "MetadataQuorumCommand", "", "--bootstrap-server", program.bootstrap, "describe", "--status").ok();
        check(status.line("ClusterId:").matches("ClusterId: \\S{22}"), status.line("ClusterId:"));
        check(status.line("LeaderId:").equals("LeaderId: 1"), status.line("LeaderId:"));
        for (String name : List.of("LeaderEpoch:", "HighWatermark:", "MaxFollowerLag:", "CurrentVoters:", "CurrentObservers:")) {
            status.line(name);
        }
        Output replication =
            box.run(PACKAGE + "MetadataQuorumCommand", "", "--bootstrap-server", program.bootstrap, "describe", "--replication").ok();
        replication.line("NodeId", "LogEndOffset", "Lag", "Status");
        check(replication.line("Leader").startsWith("1 "), replication.line("Leader"));
    }

    private void producerPerformance() throws Exception {
        String topic = records.topic("perf", 3);
        int count = program.full ? 1_000_000 : 20_000;
        box.run(PACKAGE + "ProducerPerformance", "", "--bootstrap-server", program.bootstrap, "--topic", topic, "--num-records",
            Integer.toString(count), "--record-size", "200", "--throughput", "-1", "--command-property", "compression.type=lz4").ok()
            .has(count + " records sent");
        long total = 0;
        for (String line : tool("GetOffsetShell", "--topic", topic).ok().out().split("\n")) {
            total += Long.parseLong(line.substring(line.lastIndexOf(':') + 1));
        }
        checkEquals((long) count, total, "records in the topic");
    }

    private void consumerPerformance() throws Exception {
        String topic = records.topic("consumer-perf", 1);
        box.run(PACKAGE + "ProducerPerformance", "", "--bootstrap-server", program.bootstrap, "--topic", topic, "--num-records", "5000",
            "--record-size", "100", "--throughput", "-1").ok();
        Output output = tool("ConsumerPerformance", "--topic", topic, "--num-records", "5000", "--group", program.prefix + "consumer-perf");
        output.ok().line(", 5000, ");
    }

    private void verifiable() throws Exception {
        String topic = records.topic("verifiable", 1);
        Output produced = box.runAlone(PACKAGE + "VerifiableProducer", "--bootstrap-server", program.bootstrap, "--topic", topic, "--max-messages", "100", "--acks", "-1").ok();
        produced.line("\"name\":\"tool_data\"", "\"acked\":100", "\"sent\":100");
        produced.line("producer_send_success", "\"offset\":99", "\"value\":\"99\"");
        produced.lacks("producer_send_error");
        Output consumed = box.runAlone(PACKAGE + "VerifiableConsumer", "--bootstrap-server", program.bootstrap, "--topic", topic, "--group-id", program.prefix + "verifiable", "--max-messages", "100",
            "--session-timeout", "10000", "--reset-policy", "earliest").ok();
        consumed.line("partitions_assigned", topic);
        consumed.line("offsets_committed", "\"success\":true", "\"offset\":100");
        consumed.has("shutdown_complete");
    }

    /** The folder of a partition, named by the topic's name or its id. */
    private Path folder(String topic, int partition) throws Exception {
        String id;
        try (Admin admin = records.admin()) {
            id = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).topicId().toString();
        }
        Path data = Path.of(System.getenv("DATA_DIR"));
        for (Path root : List.of(data, data.resolve("logs"))) {
            for (String name : List.of(topic, id)) {
                Path folder = root.resolve(name + "-" + partition);
                if (Files.isDirectory(folder)) {
                    return folder;
                }
            }
        }
        throw new AssertionError("no folder of " + topic + "-" + partition + " (" + id + ") in " + data);
    }

    private void dumpLog() throws Exception {
        String topic = records.topic("dump", 1, Map.of("segment.bytes", "1048576", "index.interval.bytes", "1000"));
        // More than a broker may choose to read anew instead of keeping indexes for it.
        try (Producer<byte[], byte[]> producer = records.producer("compression.type", "lz4", "batch.size", "400", "linger.ms", "5")) {
            records.send(producer, topic, 0, 5000);
        }
        Path folder = folder(topic, 0);
        // Only a clean stop trims the indexes and writes the snapshot of the producers.
        program.ask("stop");
        try {
            checkFiles(folder);
        } finally {
            program.ask("start");
        }
    }

    private void checkFiles(Path folder) throws Exception {
        String base = folder.resolve("00000000000000000000").toString();
        Output log = box.run(PACKAGE + "DumpLogSegments", "", "--deep-iteration", "--print-data-log", "--files", base + ".log").ok();
        log.line("baseOffset: 0", "isvalid: true", "compresscodec: lz4", "magic: 2", "partitionLeaderEpoch: ", "producerId: ");
        log.line("offset: 4999", "payload: value-4999-");
        log.lacks("isvalid: false");
        Output index = box.run(PACKAGE + "DumpLogSegments", "", "--index-sanity-check", "--verify-index-only", "--files",
            base + ".index," + base + ".timeindex").ok();
        index.has("passed sanity check");
        Output entries = box.run(PACKAGE + "DumpLogSegments", "", "--files", base + ".index," + base + ".timeindex").ok();
        entries.line("offset: ", "position: ");
        entries.line("timestamp: ", "offset: ");
        entries.lacks("Mismatches", "out of order", "Index position", "timestamp mismatch");
        Path snapshot;
        try (var files = Files.list(folder)) {
            snapshot = files.filter(file -> file.toString().endsWith(".snapshot")).sorted().reduce((a, b) -> b)
                .orElseThrow(() -> new AssertionError("no snapshot of the producers after a clean stop"));
        }
        box.run(PACKAGE + "DumpLogSegments", "", "--files", snapshot.toString()).ok().line("producerId: ", "producerEpoch: 0", "lastSequence: 4999");
        String epochs = Files.readString(folder.resolve("leader-epoch-checkpoint"));
        check(epochs.matches("0\n1\n\\d+ 0\n"), "leader-epoch-checkpoint: " + epochs);
        String metadata = Files.readString(folder.resolve("partition.metadata"));
        check(metadata.matches("version: 0\ntopic_id: [A-Za-z0-9_-]{22}\n?"), "partition.metadata: " + metadata);
    }

    /** A few records fit into one read of a broker that starts; Kafka's files stand beside them all the same. */
    private void dumpShort() throws Exception {
        String topic = filled("dump-short", 1, 3);
        Path folder = folder(topic, 0);
        dumpAll(folder, false);
        restarted(() -> dumpAll(folder, true));
        restarted(() -> dumpAll(folder, true));
    }

    /** After rolls, DeleteRecords, retention and a restart, each file beside each segment reads well. */
    private void dumpAfter() throws Exception {
        String topic = records.topic("dump-after", 1, Map.of("segment.bytes", "1048576", "index.interval.bytes", "2000",
            "file.delete.delay.ms", "100"));
        try (Producer<byte[], byte[]> producer = records.producer("batch.size", "4000", "linger.ms", "5")) {
            records.send(producer, topic, 0, 60_000);
        }
        Path folder = folder(topic, 0);
        check(segments(folder).size() > 2, "only " + segments(folder));
        dumpAll(folder, false);
        try (Admin admin = records.admin()) {
            var partition = new org.apache.kafka.common.TopicPartition(topic, 0);
            admin.deleteRecords(Map.of(partition, org.apache.kafka.clients.admin.RecordsToDelete.beforeOffset(30_001))).all().get();
        }
        Path first = folder.resolve("00000000000000000000.log");
        await("the first segment goes, as all of it was deleted", 60, () -> !Files.exists(first));
        dumpAll(folder, false);
        restarted(() -> dumpAll(folder, true));
    }

    private void dumpCompacted() throws Exception {
        String topic = Program.field(program.inquire("compacted"), "topic");
        Path folder = folder(topic, 0);
        dumpAll(folder, false, false);
        restarted(() -> dumpAll(folder, true, false));
        program.ask("kill");
        dumpAll(folder, false, false);
    }

    private interface Step {
        void run() throws Exception;
    }

    /** Runs a step while the broker is away. */
    private void restarted(Step step) throws Exception {
        program.ask("stop");
        try {
            step.run();
        } finally {
            program.ask("start");
        }
    }

    private static List<String> segments(Path folder) throws Exception {
        try (var files = Files.list(folder)) {
            return files.map(Path::toString).filter(file -> file.endsWith(".log")).map(file -> file.substring(0, file.length() - 4))
                .sorted().toList();
        }
    }

    private void dumpAll(Path folder, boolean stopped) throws Exception {
        dumpAll(folder, stopped, true);
    }

    /** Dumps every file of every segment with every option that is for it. A segment that compaction emptied has no times. */
    private void dumpAll(Path folder, boolean stopped, boolean times) throws Exception {
        List<String> segments = segments(folder);
        for (int i = 0; i < segments.size(); i++) {
            String base = segments.get(i);
            Output log = box.run(PACKAGE + "DumpLogSegments", "", "--deep-iteration", "--files", base + ".log").ok();
            log.lacks("isvalid: false");
            check(Files.exists(Path.of(base + ".index")) && Files.exists(Path.of(base + ".timeindex")), "no indexes beside " + base);
            String both = base + ".index," + base + ".timeindex";
            Output entries = box.run(PACKAGE + "DumpLogSegments", "", "--files", both).ok();
            entries.lacks("Mismatches", "out of order", "Index position", "timestamp mismatch");
            boolean closed = stopped || i + 1 < segments.size();
            if (closed && times) {
                entries.line("timestamp: ", "offset: ");
            }
            box.run(PACKAGE + "DumpLogSegments", "", "--index-sanity-check", "--files", both).ok();
            box.run(PACKAGE + "DumpLogSegments", "", "--verify-index-only", "--files", both).ok()
                .lacks("Mismatches", "out of order", "Index position", "timestamp mismatch");
        }
        List<Path> snapshots;
        try (var files = Files.list(folder)) {
            snapshots = files.filter(file -> file.toString().endsWith(".snapshot")).toList();
        }
        check(!stopped || !snapshots.isEmpty(), "no snapshot after a clean stop in " + folder);
        for (Path snapshot : snapshots) {
            box.run(PACKAGE + "DumpLogSegments", "", "--files", snapshot.toString()).ok();
        }
    }

    private void dumpOffsets() throws Exception {
        String topic = filled("dump-offsets", 1, 3);
        String group = program.prefix + "dump-offsets";
        tool("consumer.ConsoleConsumer", "--topic", topic, "--from-beginning", "--max-messages", "3", "--timeout-ms", "10000", "--group",
            group).ok();
        int partitions;
        try (Admin admin = records.admin()) {
            partitions = admin.describeTopics(List.of("__consumer_offsets")).allTopicNames().get().get("__consumer_offsets").partitions()
                .size();
        }
        int home = Math.abs(group.hashCode()) % partitions;
        Output log = box.run(PACKAGE + "DumpLogSegments", "", "--offsets-decoder", "--files",
            folder("__consumer_offsets", home).resolve("00000000000000000000.log").toString()).ok();
        log.line("\"group\":\"" + group + "\"", "\"topic\":\"" + topic + "\"", "\"offset\":3");
        log.line("\"group\":\"" + group + "\"", "\"protocolType\":\"consumer\"", "\"members\":[{");
        Output read = tool("consumer.ConsoleConsumer", "--topic", "__consumer_offsets", "--max-messages", "1",
            "--timeout-ms", "10000", "--partition", Integer.toString(home), "--offset", "earliest", "--formatter",
            "org.apache.kafka.tools.consumer.OffsetsMessageFormatter");
        check(read.code() == 0, read.all());
    }

    private void reassignments() throws Exception {
        tool("reassign.ReassignPartitionsCommand", "--list").ok().has("No partition reassignments found");
    }

    private void acls() throws Exception {
        tool("AclCommand", "--list").has("No Authorizer is configured");
    }

    private void clientMetrics() throws Exception {
        tool("ClientMetricsCommand", "--list").ok();
    }
}
