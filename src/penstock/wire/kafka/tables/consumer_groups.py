"""Consumer groups whose assignment is the broker's (KIP-848).

The notation is explained in `schema.py`.
"""

TABLE = """
request 68 consumer_group_heartbeat  versions 0-1  flexible 0+
    group_id                string    0+
    member_id               string    0+
    member_epoch            int32     0+
    instance_id             string    0+  nullable 0+  = null
    rack_id                 string    0+  nullable 0+  = null
    rebalance_timeout_ms    int32     0+  = -1
    subscribed_topic_names  [string]  0+  nullable 0+  = null
    subscribed_topic_regex  string    1+  nullable 1+  = null
    server_assignor         string    0+  nullable 0+  = null
    topic_partitions        [struct]  0+  nullable 0+  = null
        topic_id            uuid      0+
        partitions          [int32]   0+

response 68 consumer_group_heartbeat  versions 0-1  flexible 0+
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

request 69 consumer_group_describe  versions 0-1  flexible 0+
    group_ids                      [string]  0+
    include_authorized_operations  bool      0+

response 69 consumer_group_describe  versions 0-1  flexible 0+
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
            instance_id             string              0+  nullable 0+  = null
            rack_id                 string              0+  nullable 0+  = null
            member_epoch            int32               0+
            client_id               string              0+
            client_host             string              0+
            subscribed_topic_names  [string]            0+
            subscribed_topic_regex  string              0+  nullable 0+  = null
            assignment              assignment          0+
            target_assignment       assignment          0+
            member_type             int8                1+  = -1
        authorized_operations       int32               0+  = -2147483648
    struct topic_partitions
        topic_id                    uuid                0+
        topic_name                  string              0+
        partitions                  [int32]             0+
    struct assignment
        topic_partitions            [topic_partitions]  0+
"""
