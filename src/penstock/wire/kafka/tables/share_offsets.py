"""Administration of share groups' start offsets (KIP-932).

The notation is explained in `schema.py`.
"""

TABLE = """
request 90 describe_share_group_offsets  versions 0-1  flexible 0+
    groups              [struct]  0+
        group_id        string    0+
        topics          [struct]  0+  nullable 0+
            topic_name  string    0+
            partitions  [int32]   0+

response 90 describe_share_group_offsets  versions 0-1  flexible 0+
    throttle_time_ms             int32     0+
    groups                       [struct]  0+
        group_id                 string    0+
        topics                   [struct]  0+
            topic_name           string    0+
            topic_id             uuid      0+
            partitions           [struct]  0+
                partition_index  int32     0+
                start_offset     int64     0+
                leader_epoch     int32     0+
                lag              int64     1+  = -1
                error_code       int16     0+
                error_message    string    0+  nullable 0+  = null
        error_code               int16     0+
        error_message            string    0+  nullable 0+  = null

request 91 alter_share_group_offsets  versions 0  flexible 0+
    group_id                 string    0+
    topics                   [struct]  0+
        topic_name           string    0+
        partitions           [struct]  0+
            partition_index  int32     0+
            start_offset     int64     0+

response 91 alter_share_group_offsets  versions 0  flexible 0+
    throttle_time_ms         int32     0+
    error_code               int16     0+
    error_message            string    0+  nullable 0+  = null
    responses                [struct]  0+
        topic_name           string    0+
        topic_id             uuid      0+
        partitions           [struct]  0+
            partition_index  int32     0+
            error_code       int16     0+
            error_message    string    0+  nullable 0+  = null

request 92 delete_share_group_offsets  versions 0  flexible 0+
    group_id        string    0+
    topics          [struct]  0+
        topic_name  string    0+

response 92 delete_share_group_offsets  versions 0  flexible 0+
    throttle_time_ms   int32     0+
    error_code         int16     0+
    error_message      string    0+  nullable 0+  = null
    responses          [struct]  0+
        topic_name     string    0+
        topic_id       uuid      0+
        error_code     int16     0+
        error_message  string    0+  nullable 0+  = null
"""
