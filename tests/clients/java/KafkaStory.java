import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The Java client, told what to do by arguments and telling what happened in lines of JSON.
 *
 * <pre>
 *   produce ADDRESS TOPIC COUNT PARTITIONS [name=value ...]   values "0", "1", ... with a key, a header and a time each
 *   squeeze ADDRESS TOPIC COUNT                               the same to partitions 0 to 4, each with its compression
 *   consume ADDRESS TOPIC COUNT                               every partition from the beginning
 *   group   ADDRESS GROUP TOPIC STRATEGY                      a member until its standard input ends
 *   admin   ADDRESS TOPIC GROUP                               one round through the administration calls
 * </pre>
 */
public class KafkaStory {
    static final Duration PATIENCE = Duration.ofSeconds(30);
    static final long FIRST_TIME_MS = 1_600_000_000_000L;
    static final Map<String, String> STRATEGIES = Map.of(
        "range", "org.apache.kafka.clients.consumer.RangeAssignor",
        "roundrobin", "org.apache.kafka.clients.consumer.RoundRobinAssignor",
        "cooperative-sticky", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");

    public static void main(String[] args) throws Exception {
        switch (args[0]) {
            case "produce" -> produce(args[1], args[2], Integer.parseInt(args[3]), Integer.parseInt(args[4]), args);
            case "squeeze" -> squeeze(args[1], args[2], Integer.parseInt(args[3]));
            case "consume" -> consume(args[1], args[2], Integer.parseInt(args[3]));
            case "group" -> group(args[1], args[2], args[3], args[4]);
            case "admin" -> admin(args[1], args[2], args[3]);
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    static void squeeze(String address, String topic, int count) throws Exception {
        String[] compressions = {"none", "gzip", "snappy", "lz4", "zstd"};
        for (int partition = 0; partition < compressions.length; partition++) {
            Properties settings = producerProperties(address);
            settings.put("compression.type", compressions[partition]);
            settings.put("linger.ms", "20");
            try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
                for (int n = 0; n < count; n++) {
                    byte[] value = bytes((n + " ").repeat(20));
                    producer.send(new ProducerRecord<>(topic, partition, bytes("key-" + n), value));
                }
            }
        }
    }

    static void produce(String address, String topic, int count, int partitions, String[] args) throws Exception {
        Properties settings = producerProperties(address);
        for (int i = 5; i < args.length; i++) {
            String[] pair = args[i].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            for (int n = 0; n < count; n++) {
                byte[] value = n % 10 == 9 ? null : bytes(Integer.toString(n));
                var record = new ProducerRecord<>(topic, n % partitions, FIRST_TIME_MS + n, bytes("key-" + n), value);
                record.headers().add("n", bytes(Integer.toString(n))).add("null", null);
                sent.add(producer.send(record));
            }
            producer.flush();
        }
        Map<String, Object> offsets = new TreeMap<>();
        for (Future<RecordMetadata> one : sent) {
            try {
                RecordMetadata where = one.get();
                offsets.merge(Integer.toString(where.partition()), 1, (a, b) -> (Integer) a + (Integer) b);
            } catch (ExecutionException error) {
                offsets.merge(error.getCause().getClass().getSimpleName(), 1, (a, b) -> (Integer) a + (Integer) b);
            }
        }
        tell("sent", offsets);
    }

    static void consume(String address, String topic, int count) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(address, Map.of())) {
            List<TopicPartition> all = new ArrayList<>();
            consumer.partitionsFor(topic).forEach(part -> all.add(new TopicPartition(topic, part.partition())));
            consumer.assign(all);
            consumer.seekToBeginning(all);
            long deadline = System.nanoTime() + PATIENCE.toNanos();
            for (int seen = 0; seen < count && System.nanoTime() < deadline; ) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    seen++;
                    List<Object> headers = new ArrayList<>();
                    for (Header header : record.headers()) {
                        headers.add(List.of(header.key(), header.value() == null ? "<null>" : text(header.value())));
                    }
                    Map<String, Object> line = new LinkedHashMap<>();
                    line.put("partition", record.partition());
                    line.put("offset", record.offset());
                    line.put("timestamp", record.timestamp());
                    line.put("timestamp_type", record.timestampType().toString());
                    line.put("key", text(record.key()));
                    line.put("value", text(record.value()));
                    line.put("headers", headers);
                    tell(line);
                }
            }
            var ends = consumer.endOffsets(all);
            tell("end", ends.values().stream().mapToLong(Long::longValue).sum());
        }
    }

    static void group(String address, String group, String topic, String strategy) throws Exception {
        Map<String, String> settings = Map.of(
            "group.id", group,
            "partition.assignment.strategy", STRATEGIES.get(strategy),
            "session.timeout.ms", "6000",
            "heartbeat.interval.ms", "300",
            "auto.commit.interval.ms", "200");
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(address, settings)) {
            consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    tell("gained", partitions.stream().map(TopicPartition::partition).sorted().toList());
                }

                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                    tell("lost", partitions.stream().map(TopicPartition::partition).sorted().toList());
                }
            });
            Thread watch = new Thread(() -> {
                try {
                    while (System.in.read() >= 0) {
                        continue;
                    }
                } catch (java.io.IOException closed) {
                    // the end all the same
                }
            });
            watch.setDaemon(true);
            watch.start();
            while (watch.isAlive()) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(50))) {
                    tell("value", text(record.value()));
                }
            }
        }
    }

    static void admin(String address, String topic, String group) throws Exception {
        try (Admin admin = Admin.create(properties(address))) {
            NewTopic wanted = new NewTopic(topic, 2, (short) 1).configs(Map.of("retention.ms", "1000000"));
            var created = admin.createTopics(List.of(wanted));
            get(created.all());
            tell("created", get(created.numPartitions(topic)));
            tell("created again", failure(admin.createTopics(List.of(wanted)).all()));
            untilListed(admin, topic);
            tell("listed", get(admin.listTopics().names()).contains(topic));
            get(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all());
            var described = get(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic);
            tell("partitions", described.partitions().size());
            tell("id agrees", described.topicId().equals(get(created.topicId(topic))));
            var cluster = admin.describeCluster();
            tell("nodes", get(cluster.nodes()).stream().map(node -> node.host() + ":" + node.port()).toList());
            tell("cluster", get(cluster.clusterId()));

            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            tell("retention", settings(admin, resource).get("retention.ms").value());
            get(admin.incrementalAlterConfigs(Map.of(resource, List.of(
                new AlterConfigOp(new ConfigEntry("max.message.bytes", "2000000"), AlterConfigOp.OpType.SET),
                new AlterConfigOp(new ConfigEntry("retention.ms", ""), AlterConfigOp.OpType.DELETE),
                new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND)))).all());
            tell("limit", settings(admin, resource).get("max.message.bytes").value());
            tell("retention after", settings(admin, resource).get("retention.ms").value());
            tell("policy", settings(admin, resource).get("cleanup.policy").value());
            tell("bad setting", failure(admin.incrementalAlterConfigs(Map.of(resource, List.of(
                new AlterConfigOp(new ConfigEntry("no.such.setting", "1"), AlterConfigOp.OpType.SET)))).all()));

            produce(address, topic, 10, 1, new String[0]);
            TopicPartition first = new TopicPartition(topic, 0);
            tell("earliest", offset(admin, first, OffsetSpec.earliest()));
            tell("latest", offset(admin, first, OffsetSpec.latest()));
            tell("by time", offset(admin, first, OffsetSpec.forTimestamp(FIRST_TIME_MS + 4)));
            tell("by max time", offset(admin, first, OffsetSpec.maxTimestamp()));
            tell("beyond", offset(admin, first, OffsetSpec.forTimestamp(FIRST_TIME_MS + 400_000)));
            var deleted = admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(3)));
            tell("low watermark", get(deleted.lowWatermarks().get(first)).lowWatermark());
            tell("earliest after", offset(admin, first, OffsetSpec.earliest()));

            try (KafkaConsumer<byte[], byte[]> consumer = consumer(address, Map.of("group.id", group))) {
                consumer.subscribe(List.of(topic));
                long deadline = System.nanoTime() + PATIENCE.toNanos();
                for (int seen = 0; seen < 7 && System.nanoTime() < deadline; ) {
                    seen += consumer.poll(Duration.ofMillis(100)).count();
                }
                consumer.commitSync(Map.of(first, new OffsetAndMetadata(8, "a note")));
                ConsumerGroupDescription members = get(admin.describeConsumerGroups(List.of(group)).all()).get(group);
                tell("members", members.members().size());
                tell("assignor", members.partitionAssignor());
                tell("busy", failure(admin.deleteConsumerGroups(List.of(group)).all()));
                consumer.unsubscribe();
            }
            tell("group listed", get(admin.listConsumerGroups().all()).stream().anyMatch(g -> g.groupId().equals(group)));
            var kept = get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()).get(first);
            tell("committed", kept.offset() + " " + kept.metadata());
            get(admin.alterConsumerGroupOffsets(group, Map.of(first, new OffsetAndMetadata(5))).all());
            tell("altered", get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()).get(first).offset());
            get(admin.deleteConsumerGroupOffsets(group, Set.of(first)).all());
            tell("offsets left", get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()).size());
            get(admin.deleteConsumerGroups(List.of(group)).all());
            tell("group gone", failure(admin.deleteConsumerGroups(List.of(group)).all()));
            get(admin.deleteTopics(List.of(topic)).all());
            tell("topic gone", failure(admin.describeTopics(List.of(topic)).allTopicNames()));
        }
    }

    // -- small helpers ------------------------------------------------------------------------------------------------

    static Properties properties(String address) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", address);
        settings.put("reconnect.backoff.ms", "5");
        settings.put("reconnect.backoff.max.ms", "50");
        settings.put("retry.backoff.ms", "10");
        return settings;
    }

    static Properties producerProperties(String address) {
        Properties settings = properties(address);
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        return settings;
    }

    static KafkaConsumer<byte[], byte[]> consumer(String address, Map<String, String> more) {
        Properties settings = properties(address);
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("auto.offset.reset", "earliest");
        settings.put("fetch.max.wait.ms", "100");
        settings.putAll(more);
        return new KafkaConsumer<>(settings);
    }

    static void untilListed(Admin admin, String topic) throws Exception {
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        while (!get(admin.listTopics().names()).contains(topic) && System.nanoTime() < deadline) {
            Thread.sleep(20);
        }
    }

    static Map<String, ConfigEntry> settings(Admin admin, ConfigResource resource) throws Exception {
        Config config = get(admin.describeConfigs(List.of(resource)).all()).get(resource);
        Map<String, ConfigEntry> found = new TreeMap<>();
        config.entries().forEach(entry -> found.put(entry.name(), entry));
        return found;
    }

    static long offset(Admin admin, TopicPartition partition, OffsetSpec spec) throws Exception {
        return get(admin.listOffsets(Map.of(partition, spec)).partitionResult(partition)).offset();
    }

    static <T> T get(KafkaFuture<T> future) throws Exception {
        return future.get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
    }

    static String failure(KafkaFuture<?> future) throws Exception {
        try {
            get(future);
            return "none";
        } catch (ExecutionException error) {
            return error.getCause().getClass().getSimpleName();
        }
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }

    static void tell(String name, Object value) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put(name, value);
        tell(line);
    }

    static synchronized void tell(Map<String, Object> line) {
        System.out.println(json(line));
        System.out.flush();
    }

    static String json(Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            return String.valueOf(value);
        }
        if (value instanceof Map<?, ?> map) {
            List<String> parts = new ArrayList<>();
            map.forEach((key, inner) -> parts.add(json(key) + ": " + json(inner)));
            return "{" + String.join(", ", parts) + "}";
        }
        if (value instanceof Collection<?> list) {
            return "[" + String.join(", ", list.stream().map(KafkaStory::json).toList()) + "]";
        }
        return "\"" + value.toString().replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", "\\n") + "\"";
    }
}
