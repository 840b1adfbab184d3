"""Classic consumer groups: join, sync, heartbeat, leave, and their administration.

The notation is explained in `schema.py`.
"""

TABLE = """
request 11 join_group  versions 0-9  flexible 6+
    group_id              string    0+
    session_timeout_ms    int32     0+
    rebalance_timeout_ms  int32     1+  = -1
    member_id             string    0+
    group_instance_id     string    5+  nullable 5+  = null
    protocol_type         string    0+
    protocols             [struct]  0+
        name              string    0+
        metadata          bytes     0+
    reason                string    8+  nullable 8+  = null

response 11 join_group  versions 0-9  flexible 6+
    throttle_time_ms       int32     2+
    error_code             int16     0+
    generation_id          int32     0+  = -1
    protocol_type          string    7+  nullable 7+  = null
    protocol_name          string    0+  nullable 7+
    leader                 string    0+
    skip_assignment        bool      9+
    member_id              string    0+
    members                [struct]  0+
        member_id          string    0+
        group_instance_id  string    5+  nullable 5+  = null
        metadata           bytes     0+

request 12 heartbeat  versions 0-4  flexible 4+
    group_id           string  0+
    generation_id      int32   0+
    member_id          string  0+
    group_instance_id  string  3+  nullable 3+  = null

response 12 heartbeat  versions 0-4  flexible 4+
    throttle_time_ms  int32  1+
    error_code        int16  0+

request 13 leave_group  versions 0-5  flexible 4+
    group_id               string    0+
    member_id              string    0-2
    members                [struct]  3+
        member_id          string    3+
        group_instance_id  string    3+   nullable 3+  = null
        reason             string    5+   nullable 5+  = null

response 13 leave_group  versions 0-5  flexible 4+
    throttle_time_ms       int32     1+
    error_code             int16     0+
    members                [struct]  3+
        member_id          string    3+
        group_instance_id  string    3+  nullable 3+
        error_code         int16     3+

request 14 sync_group  versions 0-5  flexible 4+
    group_id           string    0+
    generation_id      int32     0+
    member_id          string    0+
    group_instance_id  string    3+  nullable 3+  = null
    protocol_type      string    5+  nullable 5+  = null
    protocol_name      string    5+  nullable 5+  = null
    assignments        [struct]  0+
        member_id      string    0+
        assignment     bytes     0+

response 14 sync_group  versions 0-5  flexible 4+
    throttle_time_ms  int32   1+
    error_code        int16   0+
    protocol_type     string  5+  nullable 5+  = null
    protocol_name     string  5+  nullable 5+  = null
    assignment        bytes   0+

request 15 describe_groups  versions 0-6  flexible 5+
    groups                         [string]  0+
    include_authorized_operations  bool      3+

response 15 describe_groups  versions 0-6  flexible 5+
    throttle_time_ms           int32     1+
    groups                     [struct]  0+
        error_code             int16     0+
        error_message          string    6+  nullable 6+  = null
        group_id               string    0+
        group_state            string    0+
        protocol_type          string    0+
        protocol_data          string    0+
        members                [struct]  0+
            member_id          string    0+
            group_instance_id  string    4+  nullable 4+  = null
            client_id          string    0+
            client_host        string    0+
            member_metadata    bytes     0+
            member_assignment  bytes     0+
        authorized_operations  int32     3+  = -2147483648

request 16 list_groups  versions 0-5  flexible 3+
    states_filter  [string]  4+
    types_filter   [string]  5+

response 16 list_groups  versions 0-5  flexible 3+
    throttle_time_ms   int32     1+
    error_code         int16     0+
    groups             [struct]  0+
        group_id       string    0+
        protocol_type  string    0+
        group_state    string    4+
        group_type     string    5+

request 42 delete_groups  versions 0-2  flexible 2+
    groups_names  [string]  0+

response 42 delete_groups  versions 0-2  flexible 2+
    throttle_time_ms  int32     0+
    results           [struct]  0+
        group_id      string    0+
        error_code    int16     0+
"""
