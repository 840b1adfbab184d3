"""Idempotent and transactional producers.

The notation is explained in `schema.py`.
"""

TABLE = """
request 22 init_producer_id  versions 0-5  flexible 2+
    transactional_id        string  0+  nullable 0+
    transaction_timeout_ms  int32   0+
    producer_id             int64   3+  = -1
    producer_epoch          int16   3+  = -1

response 22 init_producer_id  versions 0-5  flexible 2+
    throttle_time_ms  int32  0+
    error_code        int16  0+
    producer_id       int64  0+  = -1
    producer_epoch    int16  0+

request 24 add_partitions_to_txn  versions 0-5  flexible 3+
    transactions                   [struct]                       4+
        transactional_id           string                         4+
        producer_id                int64                          4+
        producer_epoch             int16                          4+
        verify_only                bool                           4+
        topics                     [add_partitions_to_txn_topic]  4+
    v3_and_below_transactional_id  string                         0-3
    v3_and_below_producer_id       int64                          0-3
    v3_and_below_producer_epoch    int16                          0-3
    v3_and_below_topics            [add_partitions_to_txn_topic]  0-3
    struct add_partitions_to_txn_topic
        name                       string                         0+
        partitions                 [int32]                        0+

response 24 add_partitions_to_txn  versions 0-5  flexible 3+
    throttle_time_ms               int32                                     0+
    error_code                     int16                                     4+
    results_by_transaction         [struct]                                  4+
        transactional_id           string                                    4+
        topic_results              [add_partitions_to_txn_topic_result]      4+
    results_by_topic_v3_and_below  [add_partitions_to_txn_topic_result]      0-3
    struct add_partitions_to_txn_topic_result
        name                       string                                    0+
        results_by_partition       [add_partitions_to_txn_partition_result]  0+
    struct add_partitions_to_txn_partition_result
        partition_index            int32                                     0+
        partition_error_code       int16                                     0+

request 25 add_offsets_to_txn  versions 0-4  flexible 3+
    transactional_id  string  0+
    producer_id       int64   0+
    producer_epoch    int16   0+
    group_id          string  0+

response 25 add_offsets_to_txn  versions 0-4  flexible 3+
    throttle_time_ms  int32  0+
    error_code        int16  0+

request 26 end_txn  versions 0-5  flexible 3+
    transactional_id  string  0+
    producer_id       int64   0+
    producer_epoch    int16   0+
    committed         bool    0+

response 26 end_txn  versions 0-5  flexible 3+
    throttle_time_ms  int32  0+
    error_code        int16  0+
    producer_id       int64  5+  = -1
    producer_epoch    int16  5+  = -1

request 28 txn_offset_commit  versions 0-5  flexible 3+
    transactional_id                string    0+
    group_id                        string    0+
    producer_id                     int64     0+
    producer_epoch                  int16     0+
    generation_id                   int32     3+  = -1
    member_id                       string    3+
    group_instance_id               string    3+  nullable 3+  = null
    topics                          [struct]  0+
        name                        string    0+
        partitions                  [struct]  0+
            partition_index         int32     0+
            committed_offset        int64     0+
            committed_leader_epoch  int32     2+  = -1
            committed_metadata      string    0+  nullable 0+

response 28 txn_offset_commit  versions 0-5  flexible 3+
    throttle_time_ms         int32     0+
    topics                   [struct]  0+
        name                 string    0+
        partitions           [struct]  0+
            partition_index  int32     0+
            error_code       int16     0+

request 61 describe_producers  versions 0  flexible 0+
    topics                 [struct]  0+
        name               string    0+
        partition_indexes  [int32]   0+

response 61 describe_producers  versions 0  flexible 0+
    throttle_time_ms                      int32     0+
    topics                                [struct]  0+
        name                              string    0+
        partitions                        [struct]  0+
            partition_index               int32     0+
            error_code                    int16     0+
            error_message                 string    0+  nullable 0+  = null
            active_producers              [struct]  0+
                producer_id               int64     0+
                producer_epoch            int32     0+
                last_sequence             int32     0+  = -1
                last_timestamp            int64     0+  = -1
                coordinator_epoch         int32     0+
                current_txn_start_offset  int64     0+  = -1

request 65 describe_transactions  versions 0  flexible 0+
    transactional_ids  [string]  0+

response 65 describe_transactions  versions 0  flexible 0+
    throttle_time_ms               int32     0+
    transaction_states             [struct]  0+
        error_code                 int16     0+
        transactional_id           string    0+
        transaction_state          string    0+
        transaction_timeout_ms     int32     0+
        transaction_start_time_ms  int64     0+
        producer_id                int64     0+
        producer_epoch             int16     0+
        topics                     [struct]  0+
            topic                  string    0+
            partitions             [int32]   0+

request 66 list_transactions  versions 0-2  flexible 0+
    state_filters             [string]  0+
    producer_id_filters       [int64]   0+
    duration_filter           int64     1+  = -1
    transactional_id_pattern  string    2+  nullable 2+  = null

response 66 list_transactions  versions 0-2  flexible 0+
    throttle_time_ms       int32     0+
    error_code             int16     0+
    unknown_state_filters  [string]  0+
    transaction_states     [struct]  0+
        transactional_id   string    0+
        producer_id        int64     0+
        transaction_state  string    0+
"""
