"""Committed offsets of a group.

The notation is explained in `schema.py`.
"""

TABLE = """
request 8 offset_commit  versions 2-10  flexible 8+
    group_id                        string    0+
    generation_id_or_member_epoch   int32     1+   = -1
    member_id                       string    1+
    group_instance_id               string    7+   nullable 7+  = null
    retention_time_ms               int64     2-4  = -1
    topics                          [struct]  0+
        name                        string    0-9
        topic_id                    uuid      10+
        partitions                  [struct]  0+
            partition_index         int32     0+
            committed_offset        int64     0+
            committed_leader_epoch  int32     6+   = -1
            committed_metadata      string    0+   nullable 0+

response 8 offset_commit  versions 2-10  flexible 8+
    throttle_time_ms         int32     3+
    topics                   [struct]  0+
        name                 string    0-9
        topic_id             uuid      10+
        partitions           [struct]  0+
            partition_index  int32     0+
            error_code       int16     0+

request 9 offset_fetch  versions 1-10  flexible 6+
    group_id                   string    0-7
    topics                     [struct]  0-7  nullable 2-7
        name                   string    0-7
        partition_indexes      [int32]   0-7
    groups                     [struct]  8+
        group_id               string    8+
        member_id              string    9+   nullable 9+  = null
        member_epoch           int32     9+   = -1
        topics                 [struct]  8+   nullable 8+
            name               string    8-9
            topic_id           uuid      10+
            partition_indexes  [int32]   8+
    require_stable             bool      7+

response 9 offset_fetch  versions 1-10  flexible 6+
    throttle_time_ms                    int32     3+
    topics                              [struct]  0-7
        name                            string    0-7
        partitions                      [struct]  0-7
            partition_index             int32     0-7
            committed_offset            int64     0-7
            committed_leader_epoch      int32     5-7  = -1
            metadata                    string    0-7  nullable 0-7
            error_code                  int16     0-7
    error_code                          int16     2-7
    groups                              [struct]  8+
        group_id                        string    8+
        topics                          [struct]  8+
            name                        string    8-9
            topic_id                    uuid      10+
            partitions                  [struct]  8+
                partition_index         int32     8+
                committed_offset        int64     8+
                committed_leader_epoch  int32     8+   = -1
                metadata                string    8+   nullable 8+
                error_code              int16     8+
        error_code                      int16     8+

request 47 offset_delete  versions 0
    group_id                 string    0+
    topics                   [struct]  0+
        name                 string    0+
        partitions           [struct]  0+
            partition_index  int32     0+

response 47 offset_delete  versions 0
    error_code               int16     0+
    throttle_time_ms         int32     0+
    topics                   [struct]  0+
        name                 string    0+
        partitions           [struct]  0+
            partition_index  int32     0+
            error_code       int16     0+
"""
