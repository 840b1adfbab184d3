"""What a client learns about the server: versions, brokers, topics, coordinators.

The notation is explained in `schema.py`.
"""

TABLE = """
request 18 api_versions  versions 0-4  flexible 3+
    client_software_name     string  3+
    client_software_version  string  3+

response 18 api_versions  versions 0-4  flexible 3+
    error_code                int16     0+
    api_keys                  [struct]  0+
        api_key               int16     0+
        min_version           int16     0+
        max_version           int16     0+
    throttle_time_ms          int32     1+
    supported_features        [struct]  3+  tag 0 3+
        name                  string    3+
        min_version           int16     3+
        max_version           int16     3+
    finalized_features_epoch  int64     3+  tag 1 3+  = -1
    finalized_features        [struct]  3+  tag 2 3+
        name                  string    3+
        max_version_level     int16     3+
        min_version_level     int16     3+
    zk_migration_ready        bool      3+  tag 3 3+

request 3 metadata  versions 0-13  flexible 9+
    topics                                 [struct]  0+    nullable 1+
        topic_id                           uuid      10+
        name                               string    0+    nullable 10+
    allow_auto_topic_creation              bool      4+    = true
    include_cluster_authorized_operations  bool      8-10
    include_topic_authorized_operations    bool      8+

response 3 metadata  versions 0-13  flexible 9+
    throttle_time_ms                 int32     3+
    brokers                          [struct]  0+
        node_id                      int32     0+
        host                         string    0+
        port                         int32     0+
        rack                         string    1+    nullable 1+  = null
    cluster_id                       string    2+    nullable 2+  = null
    controller_id                    int32     1+    = -1
    topics                           [struct]  0+
        error_code                   int16     0+
        name                         string    0+    nullable 12+
        topic_id                     uuid      10+
        is_internal                  bool      1+
        partitions                   [struct]  0+
            error_code               int16     0+
            partition_index          int32     0+
            leader_id                int32     0+
            leader_epoch             int32     7+    = -1
            replica_nodes            [int32]   0+
            isr_nodes                [int32]   0+
            offline_replicas         [int32]   5+
        topic_authorized_operations  int32     8+    = -2147483648
    cluster_authorized_operations    int32     8-10  = -2147483648
    error_code                       int16     13+

request 10 find_coordinator  versions 0-6  flexible 3+
    key               string    0-3
    key_type          int8      1+
    coordinator_keys  [string]  4+

response 10 find_coordinator  versions 0-6  flexible 3+
    throttle_time_ms   int32     1+
    error_code         int16     0-3
    error_message      string    1-3  nullable 1-3
    node_id            int32     0-3
    host               string    0-3
    port               int32     0-3
    coordinators       [struct]  4+
        key            string    4+
        node_id        int32     4+
        host           string    4+
        port           int32     4+
        error_code     int16     4+
        error_message  string    4+   nullable 4+

request 60 describe_cluster  versions 0-2  flexible 0+
    include_cluster_authorized_operations  bool  0+
    endpoint_type                          int8  1+  = 1
    include_fenced_brokers                 bool  2+

response 60 describe_cluster  versions 0-2  flexible 0+
    throttle_time_ms               int32     0+
    error_code                     int16     0+
    error_message                  string    0+  nullable 0+  = null
    endpoint_type                  int8      1+  = 1
    cluster_id                     string    0+
    controller_id                  int32     0+  = -1
    brokers                        [struct]  0+
        broker_id                  int32     0+
        host                       string    0+
        port                       int32     0+
        rack                       string    0+  nullable 0+  = null
        is_fenced                  bool      2+
    cluster_authorized_operations  int32     0+  = -2147483648

request 75 describe_topic_partitions  versions 0  flexible 0+
    topics                    [struct]  0+
        name                  string    0+
    response_partition_limit  int32     0+  = 2000
    cursor                    struct    0+  nullable 0+  = null
        topic_name            string    0+
        partition_index       int32     0+

response 75 describe_topic_partitions  versions 0  flexible 0+
    throttle_time_ms                  int32     0+
    topics                            [struct]  0+
        error_code                    int16     0+
        name                          string    0+  nullable 0+
        topic_id                      uuid      0+
        is_internal                   bool      0+
        partitions                    [struct]  0+
            error_code                int16     0+
            partition_index           int32     0+
            leader_id                 int32     0+
            leader_epoch              int32     0+  = -1
            replica_nodes             [int32]   0+
            isr_nodes                 [int32]   0+
            eligible_leader_replicas  [int32]   0+  nullable 0+  = null
            last_known_elr            [int32]   0+  nullable 0+  = null
            offline_replicas          [int32]   0+
        topic_authorized_operations   int32     0+  = -2147483648
    next_cursor                       struct    0+  nullable 0+  = null
        topic_name                    string    0+
        partition_index               int32     0+

request 55 describe_quorum  versions 0-2  flexible 0+
    topics                   [struct]  0+
        topic_name           string    0+
        partitions           [struct]  0+
            partition_index  int32     0+

response 55 describe_quorum  versions 0-2  flexible 0+
    error_code                    int16            0+
    error_message                 string           2+  nullable 2+
    topics                        [struct]         0+
        topic_name                string           0+
        partitions                [struct]         0+
            partition_index       int32            0+
            error_code            int16            0+
            error_message         string           2+  nullable 2+
            leader_id             int32            0+
            leader_epoch          int32            0+
            high_watermark        int64            0+
            current_voters        [replica_state]  0+
            observers             [replica_state]  0+
    nodes                         [struct]         2+
        node_id                   int32            2+
        listeners                 [struct]         2+
            name                  string           2+
            host                  string           2+
            port                  uint16           2+
    struct replica_state
        replica_id                int32            0+
        replica_directory_id      uuid             2+
        log_end_offset            int64            0+
        last_fetch_timestamp      int64            1+  = -1
        last_caught_up_timestamp  int64            1+  = -1

request 57 update_features  versions 0-2  flexible 0+
    timeout_ms             int32     0+  = 60000
    feature_updates        [struct]  0+
        feature            string    0+
        max_version_level  int16     0+
        allow_downgrade    bool      0
        upgrade_type       int8      1+  = 1
    validate_only          bool      1+

response 57 update_features  versions 0-2  flexible 0+
    throttle_time_ms   int32     0+
    error_code         int16     0+
    error_message      string    0+   nullable 0+
    results            [struct]  0-1
        feature        string    0+
        error_code     int16     0+
        error_message  string    0+   nullable 0+
"""
