"""Moving records: produce, fetch, and what is asked about a partition's offsets.

The notation is explained in `schema.py`.
"""

TABLE = """
request 0 produce  versions 0-13  flexible 9+
    transactional_id    string    3+    nullable 3+  = null
    acks                int16     0+
    timeout_ms          int32     0+
    topic_data          [struct]  0+
        name            string    0-12
        topic_id        uuid      13+
        partition_data  [struct]  0+
            index       int32     0+
            records     records   0+    nullable 0+

response 0 produce  versions 0-13  flexible 9+
    responses                              [struct]  0+
        name                               string    0-12
        topic_id                           uuid      13+
        partition_responses                [struct]  0+
            index                          int32     0+
            error_code                     int16     0+
            base_offset                    int64     0+
            log_append_time_ms             int64     2+    = -1
            log_start_offset               int64     5+    = -1
            record_errors                  [struct]  8+
                batch_index                int32     8+
                batch_index_error_message  string    8+    nullable 8+  = null
            error_message                  string    8+    nullable 8+  = null
            current_leader                 struct    10+   tag 0 10+
                leader_id                  int32     10+   = -1
                leader_epoch               int32     10+   = -1
    throttle_time_ms                       int32     1+
    node_endpoints                         [struct]  10+   tag 0 10+
        node_id                            int32     10+
        host                               string    10+
        port                               int32     10+
        rack                               string    10+   nullable 10+  = null

request 1 fetch  versions 4-18  flexible 12+
    cluster_id                    string    12+   nullable 12+  tag 0 12+  = null
    replica_id                    int32     0-14  = -1
    replica_state                 struct    15+   tag 1 15+
        replica_id                int32     15+   = -1
        replica_epoch             int64     15+   = -1
    max_wait_ms                   int32     0+
    min_bytes                     int32     0+
    max_bytes                     int32     3+    = 0x7fffffff
    isolation_level               int8      4+
    session_id                    int32     7+
    session_epoch                 int32     7+    = -1
    topics                        [struct]  0+
        topic                     string    0-12
        topic_id                  uuid      13+
        partitions                [struct]  0+
            partition             int32     0+
            current_leader_epoch  int32     9+    = -1
            fetch_offset          int64     0+
            last_fetched_epoch    int32     12+   = -1
            log_start_offset      int64     5+    = -1
            partition_max_bytes   int32     0+
            replica_directory_id  uuid      17+   tag 0 17+
            high_watermark        int64     18+   tag 1 18+  = 9223372036854775807
    forgotten_topics_data         [struct]  7+
        topic                     string    7-12
        topic_id                  uuid      13+
        partitions                [int32]   7+
    rack_id                       string    11+

response 1 fetch  versions 4-18  flexible 12+
    throttle_time_ms                int32     1+
    error_code                      int16     7+
    session_id                      int32     7+
    responses                       [struct]  0+
        topic                       string    0-12
        topic_id                    uuid      13+
        partitions                  [struct]  0+
            partition_index         int32     0+
            error_code              int16     0+
            high_watermark          int64     0+
            last_stable_offset      int64     4+    = -1
            log_start_offset        int64     5+    = -1
            diverging_epoch         struct    12+   tag 0 12+
                epoch               int32     12+   = -1
                end_offset          int64     12+   = -1
            current_leader          struct    12+   tag 1 12+
                leader_id           int32     12+   = -1
                leader_epoch        int32     12+   = -1
            snapshot_id             struct    12+   tag 2 12+
                end_offset          int64     0+    = -1
                epoch               int32     0+    = -1
            aborted_transactions    [struct]  4+    nullable 4+
                producer_id         int64     4+
                first_offset        int64     4+
            preferred_read_replica  int32     11+   = -1
            records                 records   0+    nullable 0+
    node_endpoints                  [struct]  16+   tag 0 16+
        node_id                     int32     16+
        host                        string    16+
        port                        int32     16+
        rack                        string    16+   nullable 16+  = null

request 2 list_offsets  versions 1-11  flexible 6+
    replica_id                    int32     0+
    isolation_level               int8      2+
    topics                        [struct]  0+
        name                      string    0+
        partitions                [struct]  0+
            partition_index       int32     0+
            current_leader_epoch  int32     4+   = -1
            timestamp             int64     0+
    timeout_ms                    int32     10+

response 2 list_offsets  versions 1-11  flexible 6+
    throttle_time_ms         int32     2+
    topics                   [struct]  0+
        name                 string    0+
        partitions           [struct]  0+
            partition_index  int32     0+
            error_code       int16     0+
            timestamp        int64     1+  = -1
            offset           int64     1+  = -1
            leader_epoch     int32     4+  = -1

request 21 delete_records  versions 0-2  flexible 2+
    topics                   [struct]  0+
        name                 string    0+
        partitions           [struct]  0+
            partition_index  int32     0+
            offset           int64     0+
    timeout_ms               int32     0+

response 21 delete_records  versions 0-2  flexible 2+
    throttle_time_ms         int32     0+
    topics                   [struct]  0+
        name                 string    0+
        partitions           [struct]  0+
            partition_index  int32     0+
            low_watermark    int64     0+
            error_code       int16     0+

request 23 offset_for_leader_epoch  versions 2-4  flexible 4+
    replica_id                    int32     3+  = -2
    topics                        [struct]  0+
        topic                     string    0+
        partitions                [struct]  0+
            partition             int32     0+
            current_leader_epoch  int32     2+  = -1
            leader_epoch          int32     0+

response 23 offset_for_leader_epoch  versions 2-4  flexible 4+
    throttle_time_ms      int32     2+
    topics                [struct]  0+
        topic             string    0+
        partitions        [struct]  0+
            error_code    int16     0+
            partition     int32     0+
            leader_epoch  int32     1+  = -1
            end_offset    int64     0+  = -1
"""
