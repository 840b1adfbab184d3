"""Share groups (KIP-932): records are acknowledged one by one, members share partitions.

The notation is explained in `schema.py`.
"""

TABLE = """
request 76 share_group_heartbeat  versions 1  flexible 0+
    group_id                string    0+
    member_id               string    0+
    member_epoch            int32     0+
    rack_id                 string    0+  nullable 0+  = null
    subscribed_topic_names  [string]  0+  nullable 0+  = null

response 76 share_group_heartbeat  versions 1  flexible 0+
    throttle_time_ms       int32               0+
    error_code             int16               0+
    error_message          string              0+  nullable 0+  = null
    member_id              string              0+  nullable 0+  = null
    member_epoch           int32               0+
    heartbeat_interval_ms  int32               0+
    assignment             struct              0+  nullable 0+  = null
        topic_partitions   [topic_partitions]  0+
    struct topic_partitions
        topic_id           uuid                0+
        partitions         [int32]             0+

request 77 share_group_describe  versions 1  flexible 0+
    group_ids                      [string]  0+
    include_authorized_operations  bool      0+

response 77 share_group_describe  versions 1  flexible 0+
    throttle_time_ms                int32               0+
    groups                          [struct]            0+
        error_code                  int16               0+
        error_message               string              0+  nullable 0+  = null
        group_id                    string              0+
        group_state                 string              0+
        group_epoch                 int32               0+
        assignment_epoch            int32               0+
        assignor_name               string              0+
        members                     [struct]            0+
            member_id               string              0+
            rack_id                 string              0+  nullable 0+  = null
            member_epoch            int32               0+
            client_id               string              0+
            client_host             string              0+
            subscribed_topic_names  [string]            0+
            assignment              assignment          0+
        authorized_operations       int32               0+  = -2147483648
    struct topic_partitions
        topic_id                    uuid                0+
        topic_name                  string              0+
        partitions                  [int32]             0+
    struct assignment
        topic_partitions            [topic_partitions]  0+

request 78 share_fetch  versions 1-2  flexible 0+
    group_id                         string    0+  nullable 0+  = null
    member_id                        string    0+  nullable 0+
    share_session_epoch              int32     0+
    max_wait_ms                      int32     0+
    min_bytes                        int32     0+
    max_bytes                        int32     0+  = 0x7fffffff
    max_records                      int32     1+
    batch_size                       int32     1+
    share_acquire_mode               int8      2+
    is_renew_ack                     bool      2+
    topics                           [struct]  0+
        topic_id                     uuid      0+
        partitions                   [struct]  0+
            partition_index          int32     0+
            partition_max_bytes      int32     0
            acknowledgement_batches  [struct]  0+
                first_offset         int64     0+
                last_offset          int64     0+
                acknowledge_types    [int8]    0+
    forgotten_topics_data            [struct]  0+
        topic_id                     uuid      0+
        partitions                   [int32]   0+

response 78 share_fetch  versions 1-2  flexible 0+
    throttle_time_ms                   int32     0+
    error_code                         int16     0+
    error_message                      string    0+  nullable 0+  = null
    acquisition_lock_timeout_ms        int32     1+
    responses                          [struct]  0+
        topic_id                       uuid      0+
        partitions                     [struct]  0+
            partition_index            int32     0+
            error_code                 int16     0+
            error_message              string    0+  nullable 0+  = null
            acknowledge_error_code     int16     0+
            acknowledge_error_message  string    0+  nullable 0+  = null
            current_leader             struct    0+
                leader_id              int32     0+
                leader_epoch           int32     0+
            records                    records   0+  nullable 0
            acquired_records           [struct]  0+
                first_offset           int64     0+
                last_offset            int64     0+
                delivery_count         int16     0+
    node_endpoints                     [struct]  0+
        node_id                        int32     0+
        host                           string    0+
        port                           int32     0+
        rack                           string    0+  nullable 0+  = null

request 79 share_acknowledge  versions 1-2  flexible 0+
    group_id                         string    0+  nullable 0+  = null
    member_id                        string    0+  nullable 0+
    share_session_epoch              int32     0+
    is_renew_ack                     bool      2+
    topics                           [struct]  0+
        topic_id                     uuid      0+
        partitions                   [struct]  0+
            partition_index          int32     0+
            acknowledgement_batches  [struct]  0+
                first_offset         int64     0+
                last_offset          int64     0+
                acknowledge_types    [int8]    0+

response 79 share_acknowledge  versions 1-2  flexible 0+
    throttle_time_ms             int32     0+
    error_code                   int16     0+
    error_message                string    0+  nullable 0+  = null
    acquisition_lock_timeout_ms  int32     2+
    responses                    [struct]  0+
        topic_id                 uuid      0+
        partitions               [struct]  0+
            partition_index      int32     0+
            error_code           int16     0+
            error_message        string    0+  nullable 0+  = null
            current_leader       struct    0+
                leader_id        int32     0+
                leader_epoch     int32     0+
    node_endpoints               [struct]  0+
        node_id                  int32     0+
        host                     string    0+
        port                     int32     0+
        rack                     string    0+  nullable 0+  = null
"""
