"""Where replicas live: log directories, elections, reassignments.

The notation is explained in `schema.py`.
"""

TABLE = """
request 34 alter_replica_log_dirs  versions 1-2  flexible 2+
    dirs                [struct]  0+
        path            string    0+
        topics          [struct]  0+
            name        string    0+
            partitions  [int32]   0+

response 34 alter_replica_log_dirs  versions 1-2  flexible 2+
    throttle_time_ms         int32     0+
    results                  [struct]  0+
        topic_name           string    0+
        partitions           [struct]  0+
            partition_index  int32     0+
            error_code       int16     0+

request 35 describe_log_dirs  versions 1-4  flexible 2+
    topics          [struct]  0+  nullable 0+
        topic       string    0+
        partitions  [int32]   0+

response 35 describe_log_dirs  versions 1-4  flexible 2+
    throttle_time_ms             int32     0+
    error_code                   int16     3+
    results                      [struct]  0+
        error_code               int16     0+
        log_dir                  string    0+
        topics                   [struct]  0+
            name                 string    0+
            partitions           [struct]  0+
                partition_index  int32     0+
                partition_size   int64     0+
                offset_lag       int64     0+
                is_future_key    bool      0+
        total_bytes              int64     4+  = -1
        usable_bytes             int64     4+  = -1

request 43 elect_leaders  versions 0-2  flexible 2+
    election_type     int8      1+
    topic_partitions  [struct]  0+  nullable 0+
        topic         string    0+
        partitions    [int32]   0+
    timeout_ms        int32     0+  = 60000

response 43 elect_leaders  versions 0-2  flexible 2+
    throttle_time_ms          int32     0+
    error_code                int16     1+
    replica_election_results  [struct]  0+
        topic                 string    0+
        partition_result      [struct]  0+
            partition_id      int32     0+
            error_code        int16     0+
            error_message     string    0+  nullable 0+

request 45 alter_partition_reassignments  versions 0-1  flexible 0+
    timeout_ms                       int32     0+  = 60000
    allow_replication_factor_change  bool      1+  = true
    topics                           [struct]  0+
        name                         string    0+
        partitions                   [struct]  0+
            partition_index          int32     0+
            replicas                 [int32]   0+  nullable 0+  = null

response 45 alter_partition_reassignments  versions 0-1  flexible 0+
    throttle_time_ms                 int32     0+
    allow_replication_factor_change  bool      1+  = true
    error_code                       int16     0+
    error_message                    string    0+  nullable 0+
    responses                        [struct]  0+
        name                         string    0+
        partitions                   [struct]  0+
            partition_index          int32     0+
            error_code               int16     0+
            error_message            string    0+  nullable 0+

request 46 list_partition_reassignments  versions 0  flexible 0+
    timeout_ms             int32     0+  = 60000
    topics                 [struct]  0+  nullable 0+  = null
        name               string    0+
        partition_indexes  [int32]   0+

response 46 list_partition_reassignments  versions 0  flexible 0+
    throttle_time_ms           int32     0+
    error_code                 int16     0+
    error_message              string    0+  nullable 0+
    topics                     [struct]  0+
        name                   string    0+
        partitions             [struct]  0+
            partition_index    int32     0+
            replicas           [int32]   0+
            adding_replicas    [int32]   0+
            removing_replicas  [int32]   0+
"""
