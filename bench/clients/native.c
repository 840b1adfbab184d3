/* The load generator: librdkafka from C, so that the client costs as little as it can.
 *
 *   native produce ADDRESS TOPIC COUNT SIZE PARTITIONS ACKS    COUNT messages, 1000 to a partition in turn
 *   native consume ADDRESS TOPIC COUNT SIZE PARTITIONS -       COUNT messages from the beginning of all partitions
 *   native latency ADDRESS TOPIC COUNT SIZE PARTITIONS ACKS    COUNT messages one after another, each awaited
 *
 * It links against the librdkafka that the confluent-kafka wheel carries, which comes without a header: what is used of
 * the public API is declared here. One line of JSON is the result.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <time.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_message_s {
    int err;
    rd_kafka_topic_t *rkt;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *_private;
} rd_kafka_message_t;

extern rd_kafka_conf_t *rd_kafka_conf_new(void);
extern int rd_kafka_conf_set(rd_kafka_conf_t *, const char *, const char *, char *, size_t);
extern void rd_kafka_conf_set_dr_msg_cb(rd_kafka_conf_t *, void (*)(rd_kafka_t *, const rd_kafka_message_t *, void *));
extern rd_kafka_t *rd_kafka_new(int, rd_kafka_conf_t *, char *, size_t);
extern rd_kafka_topic_t *rd_kafka_topic_new(rd_kafka_t *, const char *, void *);
extern int rd_kafka_produce(rd_kafka_topic_t *, int32_t, int, void *, size_t, const void *, size_t, void *);
extern int rd_kafka_poll(rd_kafka_t *, int);
extern int rd_kafka_flush(rd_kafka_t *, int);
extern rd_kafka_queue_t *rd_kafka_queue_new(rd_kafka_t *);
extern int rd_kafka_consume_start_queue(rd_kafka_topic_t *, int32_t, int64_t, rd_kafka_queue_t *);
extern ssize_t rd_kafka_consume_batch_queue(rd_kafka_queue_t *, int, rd_kafka_message_t **, size_t);
extern void rd_kafka_message_destroy(rd_kafka_message_t *);
extern const char *rd_kafka_err2str(int);

enum { PRODUCER = 0, CONSUMER = 1, COPY = 2, FROM_BEGINNING = -2, PARTITION_EOF = -191, RUN_LENGTH = 1000, MANY = 10000 };
static const double PATIENCE_S = 120.0;

static int64_t delivered, failed;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double cpu_s(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static void die(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void on_delivery(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
    (void)client;
    (void)opaque;
    if (message->err) {
        failed++;
        fprintf(stderr, "%s\n", rd_kafka_err2str(message->err));
    } else {
        delivered++;
    }
}

static rd_kafka_t *client(int kind, const char *address, const char *settings[][2], size_t count) {
    char error[512];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set(conf, "bootstrap.servers", address, error, sizeof error);
    rd_kafka_conf_set(conf, "log_level", "2", error, sizeof error);
    for (size_t i = 0; i < count; i++)
        if (rd_kafka_conf_set(conf, settings[i][0], settings[i][1], error, sizeof error) != 0) die(error);
    if (kind == PRODUCER) rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    rd_kafka_t *made = rd_kafka_new(kind, conf, error, sizeof error);
    if (!made) die(error);
    return made;
}

static void send_one(rd_kafka_t *rk, rd_kafka_topic_t *topic, int partition, char *value, size_t size) {
    while (rd_kafka_produce(topic, partition, COPY, value, size, NULL, 0, NULL) != 0) rd_kafka_poll(rk, 1);
}

/* The connection, the metadata and the producer's own threads are up before the clock starts. */
static void warm_up(rd_kafka_t *rk, rd_kafka_topic_t *topic, char *value, size_t size, int partitions) {
    for (int i = 0; i < partitions; i++) send_one(rk, topic, i, value, size);
    if (rd_kafka_flush(rk, 30000) != 0 || failed) die("the warm-up was not acknowledged");
    delivered = 0;
}

static void produce(const char *address, const char *name, int64_t count, size_t size, int partitions, const char *acks) {
    const char *settings[][2] = {{"acks", acks}, {"linger.ms", "5"}, {"queue.buffering.max.messages", "500000"},
                                 {"queue.buffering.max.kbytes", "1048576"}};
    rd_kafka_t *rk = client(PRODUCER, address, settings, 4);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, name, NULL);
    char *value = malloc(size);
    memset(value, 'x', size);
    warm_up(rk, topic, value, size, partitions);
    double started = now_s(), cpu = cpu_s();
    for (int64_t i = 0; i < count; i++) {
        send_one(rk, topic, (int)(i / RUN_LENGTH % partitions), value, size);
        if (i % RUN_LENGTH == 0) rd_kafka_poll(rk, 0);
    }
    rd_kafka_flush(rk, (int)(PATIENCE_S * 1000));
    double took = now_s() - started;
    if (delivered != count) die("not everything was acknowledged");
    printf("{\"seconds\": %.6f, \"messages\": %lld, \"client_cpu_s\": %.3f}\n", took, (long long)count, cpu_s() - cpu);
}

static void consume(const char *address, const char *name, int64_t count, int partitions) {
    const char *settings[][2] = {{"queued.min.messages", "1000000"}, {"queued.max.messages.kbytes", "262144"},
                                 {"fetch.message.max.bytes", "4194304"}, {"group.id", "native"}};
    rd_kafka_t *rk = client(CONSUMER, address, settings, 4);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, name, NULL);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(rk);
    static rd_kafka_message_t *messages[MANY];
    double asked = now_s(), started = 0, cpu = 0;
    int64_t seen = 0, seen_before = 0;
    for (int i = 0; i < partitions; i++)
        if (rd_kafka_consume_start_queue(topic, i, FROM_BEGINNING, queue) != 0) die("cannot start to consume");
    while (seen < count) {
        ssize_t got = rd_kafka_consume_batch_queue(queue, 1000, messages, MANY);
        for (ssize_t i = 0; i < got; i++) {
            if (messages[i]->err && messages[i]->err != PARTITION_EOF) die(rd_kafka_err2str(messages[i]->err));
            if (!messages[i]->err) seen++;
            rd_kafka_message_destroy(messages[i]);
        }
        if (!started && seen) { /* librdkafka takes its time to find the leaders: the clock starts with the flow */
            started = now_s();
            cpu = cpu_s();
            seen_before = seen;
        }
        if (now_s() - asked > PATIENCE_S) die("too few messages came");
    }
    printf("{\"seconds\": %.6f, \"messages\": %lld, \"client_cpu_s\": %.3f, \"first_s\": %.4f}\n", now_s() - started,
           (long long)(seen - seen_before), cpu_s() - cpu, started - asked);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void latency(const char *address, const char *name, int64_t count, size_t size, const char *acks) {
    const char *settings[][2] = {{"acks", acks}, {"linger.ms", "0"}};
    rd_kafka_t *rk = client(PRODUCER, address, settings, 2);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, name, NULL);
    char *value = malloc(size);
    memset(value, 'x', size);
    warm_up(rk, topic, value, size, 1);
    double *times = malloc(sizeof(double) * (size_t)count);
    for (int64_t i = 0; i < count; i++) {
        double started = now_s();
        send_one(rk, topic, 0, value, size);
        while (delivered <= i && !failed) rd_kafka_poll(rk, 1000);
        times[i] = now_s() - started;
    }
    if (failed) die("not everything was acknowledged");
    qsort(times, (size_t)count, sizeof(double), by_size);
    printf("{\"p50_ms\": %.4f, \"p99_ms\": %.4f, \"max_ms\": %.4f, \"messages\": %lld}\n", times[count / 2] * 1e3,
           times[count * 99 / 100] * 1e3, times[count - 1] * 1e3, (long long)count);
}

int main(int argc, char **argv) {
    if (argc != 8) die("usage: native produce|consume|latency ADDRESS TOPIC COUNT SIZE PARTITIONS ACKS");
    int64_t count = atoll(argv[4]);
    size_t size = (size_t)atoll(argv[5]);
    int partitions = atoi(argv[6]);
    if (strcmp(argv[1], "produce") == 0) produce(argv[2], argv[3], count, size, partitions, argv[7]);
    else if (strcmp(argv[1], "consume") == 0) consume(argv[2], argv[3], count, partitions);
    else if (strcmp(argv[1], "latency") == 0) latency(argv[2], argv[3], count, size, argv[7]);
    else die("produce, consume or latency?");
    fflush(stdout);
    _Exit(0); /* the result is out: no need to wait for librdkafka's threads */
}
