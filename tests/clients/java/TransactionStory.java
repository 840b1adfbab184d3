import java.io.FileWriter;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Transactions of the Java client, told what to do by arguments and telling what happened in lines of JSON.
 *
 * <pre>
 *   plan    ADDRESS TOPIC PARTITIONS ID PLAN       one transaction per letter of PLAN: c commits, a aborts
 *   zombie  ADDRESS TOPIC ID                       one producer takes the place of another
 *   late    ADDRESS TOPIC ID                       a transaction that takes too long, and the next one
 *   move    ADDRESS SOURCE SINK GROUP ID COUNT     COUNT records from one topic to another, every other attempt aborted
 *   admin   ADDRESS TOPIC ID                       what administrators see
 *   loop    ADDRESS SOURCE SINKS GROUP ID JOURNAL STOP SEED      until the file STOP is there (see the kill tests)
 * </pre>
 */
public class TransactionStory {
    static final Duration PATIENCE = Duration.ofSeconds(30);
    static final int COPIES = 2;

    public static void main(String[] args) throws Exception {
        switch (args[0]) {
            case "plan" -> plan(args[1], args[2], Integer.parseInt(args[3]), args[4], args[5]);
            case "zombie" -> zombie(args[1], args[2], args[3]);
            case "late" -> late(args[1], args[2], args[3]);
            case "move" -> move(args[1], args[2], args[3], args[4], args[5], Integer.parseInt(args[6]));
            case "admin" -> admin(args[1], args[2], args[3]);
            case "loop" -> loop(args);
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    static void plan(String address, String topic, int partitions, String id, String plan) {
        try (KafkaProducer<String, String> producer = producer(address, id, Map.of())) {
            producer.initTransactions();
            for (int n = 0; n < plan.length(); n++) {
                producer.beginTransaction();
                for (int partition = 0; partition < partitions; partition++) {
                    producer.send(new ProducerRecord<>(topic, partition, null, Integer.toString(n)));
                }
                producer.flush();
                if (plan.charAt(n) == 'c') {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
            tell("transactions", plan.length());
        }
    }

    static void zombie(String address, String topic, String id) {
        KafkaProducer<String, String> zombie = producer(address, id, Map.of());
        KafkaProducer<String, String> successor = producer(address, id, Map.of());
        try {
            zombie.initTransactions();
            zombie.beginTransaction();
            zombie.send(new ProducerRecord<>(topic, 0, null, "of the zombie"));
            zombie.flush();
            successor.initTransactions();
            tell("zombie", failure(() -> {
                zombie.send(new ProducerRecord<>(topic, 0, null, "too late"));
                zombie.flush();
                zombie.commitTransaction();
            }));
            successor.beginTransaction();
            successor.send(new ProducerRecord<>(topic, 0, null, "of the successor"));
            successor.commitTransaction();
        } finally {
            zombie.close(Duration.ZERO);
            successor.close();
        }
    }

    static void late(String address, String topic, String id) throws Exception {
        KafkaProducer<String, String> producer = producer(address, id, Map.of("transaction.timeout.ms", "1000"));
        try {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, "late"));
            producer.flush();
            try (Admin admin = Admin.create(properties(address))) {
                long deadline = System.nanoTime() + PATIENCE.toNanos();
                while (!state(admin, id).equals("COMPLETE_ABORT") && System.nanoTime() < deadline) {
                    Thread.sleep(50);
                }
                tell("state", state(admin, id));
            }
            tell("late", failure(producer::commitTransaction));
        } finally {
            producer.close(Duration.ZERO);
        }
        plan(address, topic, 1, id, "c");
    }

    static String state(Admin admin, String id) throws Exception {
        return get(admin.describeTransactions(List.of(id)).description(id)).state().name();
    }

    static void move(String address, String source, String sink, String group, String id, int count) {
        int moved = 0;
        try (KafkaProducer<String, String> producer = producer(address, id, Map.of());
                KafkaConsumer<String, String> consumer = consumer(address, group)) {
            producer.initTransactions();
            consumer.subscribe(List.of(source));
            long deadline = System.nanoTime() + PATIENCE.toNanos();
            for (int attempt = 0; moved < count && System.nanoTime() < deadline; ) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
                if (records.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                records.forEach(record -> producer.send(new ProducerRecord<>(sink, record.partition(), null, record.value())));
                producer.sendOffsetsToTransaction(ends(records), consumer.groupMetadata());
                if (attempt++ % 2 == 0) {
                    producer.flush();
                    producer.abortTransaction();
                    rewind(consumer, records);
                } else {
                    producer.commitTransaction();
                    moved += records.count();
                }
            }
        }
        tell("moved", moved);
    }

    static void admin(String address, String topic, String id) throws Exception {
        try (Admin admin = Admin.create(properties(address));
                KafkaProducer<String, String> producer =
                    producer(address, id, Map.of("transaction.timeout.ms", "50000"))) {
            tell("unknown", failure(() -> state(admin, id)));
            producer.initTransactions();
            tell("before", state(admin, id));
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 1, null, "x"));
            producer.flush();
            var described = get(admin.describeTransactions(List.of(id)).description(id));
            tell("state", described.state().name());
            tell("timeout", described.transactionTimeoutMs());
            tell("partitions", described.topicPartitions().stream().map(TopicPartition::partition).toList());
            tell("started", described.transactionStartTimeMs().isPresent());
            tell("listed", get(admin.listTransactions().all()).stream().filter(l -> l.transactionalId().equals(id))
                .map(l -> l.state().name() + " " + (l.producerId() == described.producerId())).toList());
            ListTransactionsOptions ended = new ListTransactionsOptions()
                .filterStates(List.of(TransactionState.COMPLETE_COMMIT));
            tell("listed as ended", get(admin.listTransactions(ended).all()).stream()
                .filter(l -> l.transactionalId().equals(id)).count());
            ListTransactionsOptions other = new ListTransactionsOptions()
                .filterProducerIds(List.of(described.producerId() + 1_000_000));
            tell("listed of another", get(admin.listTransactions(other).all()).size());
            TopicPartition place = new TopicPartition(topic, 1);
            var active = get(admin.describeProducers(List.of(place)).partitionResult(place)).activeProducers();
            tell("producers", active.stream().map(p -> p.producerId() == described.producerId()
                ? p.currentTransactionStartOffset().orElse(-1L) : "somebody else").toList());
            get(admin.fenceProducers(List.of(id)).all());
            tell("fenced", failure(producer::commitTransaction));
            producer.close(Duration.ZERO);
        }
    }

    // -- under fire ---------------------------------------------------------------------------------------------------

    static void loop(String[] args) throws Exception {
        Path stop = Path.of(args[7]);
        Random random = new Random(Long.parseLong(args[8]));
        try (PrintWriter journal = new PrintWriter(new FileWriter(args[6], StandardCharsets.UTF_8, true), true)) {
            for (int life = 0; !Files.exists(stop); life++) {
                try {
                    live(args, journal, stop, random, args[5] + "/" + ProcessHandle.current().pid() + "/" + life);
                } catch (Exception error) {
                    System.err.println(error);
                    Thread.sleep(50);
                }
            }
        }
    }

    /** One producer and one consumer until something goes wrong; then both begin anew. */
    static void live(String[] args, PrintWriter journal, Path stop, Random random, String name) throws Exception {
        String address = args[1], source = args[2], sinks = args[3], group = args[4], id = args[5];
        KafkaProducer<String, String> producer = producer(address, id, Map.of(
            "max.block.ms", "6000", "request.timeout.ms", "3000", "delivery.timeout.ms", "6000",
            "transaction.timeout.ms", "10000", "linger.ms", "0"));
        try (KafkaConsumer<String, String> consumer = consumer(address, group)) {
            producer.initTransactions();
            consumer.subscribe(List.of(source));
            for (int n = 0; !Files.exists(stop); n++) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
                if (records.isEmpty()) {
                    continue;
                }
                String attempt = name + "/" + n;
                List<String> taken = new ArrayList<>();
                records.forEach(record -> taken.add("[" + record.partition() + ", " + record.offset() + "]"));
                journal.println("{\"attempt\": \"" + attempt + "\", \"inputs\": " + taken + "}");
                producer.beginTransaction();
                for (ConsumerRecord<String, String> record : records) {
                    for (int copy = 0; copy < COPIES; copy++) {
                        String value = attempt + " " + record.partition() + " " + record.offset() + " " + copy;
                        producer.send(new ProducerRecord<>(sinks + "-" + copy, record.partition(), null, value));
                    }
                }
                producer.sendOffsetsToTransaction(ends(records), consumer.groupMetadata());
                boolean abort = random.nextInt(8) == 0;
                if (abort) {
                    producer.abortTransaction();
                    rewind(consumer, records);
                } else {
                    producer.commitTransaction();
                }
                journal.println("{\"attempt\": \"" + attempt + "\", \"outcome\": \""
                    + (abort ? "aborted" : "committed") + "\"}");
            }
        } finally {
            producer.close(Duration.ZERO);
        }
    }

    // -- small helpers ------------------------------------------------------------------------------------------------

    static Map<TopicPartition, OffsetAndMetadata> ends(ConsumerRecords<String, String> records) {
        Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
        for (TopicPartition place : records.partitions()) {
            List<ConsumerRecord<String, String>> all = records.records(place);
            ends.put(place, new OffsetAndMetadata(all.get(all.size() - 1).offset() + 1));
        }
        return ends;
    }

    static void rewind(KafkaConsumer<String, String> consumer, ConsumerRecords<String, String> records) {
        records.partitions().forEach(place -> consumer.seek(place, records.records(place).get(0).offset()));
    }

    static Properties properties(String address) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", address);
        settings.put("reconnect.backoff.ms", "5");
        settings.put("reconnect.backoff.max.ms", "50");
        settings.put("retry.backoff.ms", "10");
        return settings;
    }

    static KafkaProducer<String, String> producer(String address, String id, Map<String, String> more) {
        Properties settings = properties(address);
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        settings.put("transactional.id", id);
        settings.putAll(more);
        return new KafkaProducer<>(settings);
    }

    static KafkaConsumer<String, String> consumer(String address, String group) {
        Properties settings = properties(address);
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        settings.put("group.id", group);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("isolation.level", "read_committed");
        settings.put("max.poll.records", "10");
        settings.put("fetch.max.wait.ms", "50");
        settings.put("session.timeout.ms", "1500");
        settings.put("heartbeat.interval.ms", "200");
        settings.put("default.api.timeout.ms", "6000");
        settings.put("request.timeout.ms", "3000");
        return new KafkaConsumer<>(settings);
    }

    interface Deed {
        void run() throws Exception;
    }

    static String failure(Deed deed) {
        try {
            deed.run();
            return "none";
        } catch (ExecutionException error) {
            return error.getCause().getClass().getSimpleName();
        } catch (Exception error) {
            return error.getClass().getSimpleName();
        }
    }

    static <T> T get(KafkaFuture<T> future) throws Exception {
        return future.get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
    }

    static void tell(String name, Object value) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put(name, value);
        KafkaStory.tell(line);
    }
}
