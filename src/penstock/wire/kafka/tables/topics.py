"""Creating, growing and deleting topics.

The notation is explained in `schema.py`.
"""

TABLE = """
request 19 create_topics  versions 2-7  flexible 5+
    topics                   [struct]  0+
        name                 string    0+
        num_partitions       int32     0+
        replication_factor   int16     0+
        assignments          [struct]  0+
            partition_index  int32     0+
            broker_ids       [int32]   0+
        configs              [struct]  0+
            name             string    0+
            value            string    0+  nullable 0+
    timeout_ms               int32     0+  = 60000
    validate_only            bool      1+

response 19 create_topics  versions 2-7  flexible 5+
    throttle_time_ms             int32     2+
    topics                       [struct]  0+
        name                     string    0+
        topic_id                 uuid      7+
        error_code               int16     0+
        error_message            string    1+  nullable 0+
        topic_config_error_code  int16     5+  tag 0 5+
        num_partitions           int32     5+  = -1
        replication_factor       int16     5+  = -1
        configs                  [struct]  5+  nullable 5+
            name                 string    5+
            value                string    5+  nullable 5+
            read_only            bool      5+
            config_source        int8      5+  = -1
            is_sensitive         bool      5+

request 20 delete_topics  versions 1-6  flexible 4+
    topics        [struct]  6+
        name      string    6+   nullable 6+  = null
        topic_id  uuid      6+
    topic_names   [string]  0-5
    timeout_ms    int32     0+

response 20 delete_topics  versions 1-6  flexible 4+
    throttle_time_ms   int32     1+
    responses          [struct]  0+
        name           string    0+  nullable 6+
        topic_id       uuid      6+
        error_code     int16     0+
        error_message  string    5+  nullable 5+  = null

request 37 create_partitions  versions 0-3  flexible 2+
    topics              [struct]  0+
        name            string    0+
        count           int32     0+
        assignments     [struct]  0+  nullable 0+
            broker_ids  [int32]   0+
    timeout_ms          int32     0+
    validate_only       bool      0+

response 37 create_partitions  versions 0-3  flexible 2+
    throttle_time_ms   int32     0+
    results            [struct]  0+
        name           string    0+
        error_code     int16     0+
        error_message  string    0+  nullable 0+  = null
"""
