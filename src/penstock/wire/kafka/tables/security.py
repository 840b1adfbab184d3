"""Authentication and access control lists.

The notation is explained in `schema.py`.
"""

TABLE = """
request 17 sasl_handshake  versions 0-1
    mechanism  string  0+

response 17 sasl_handshake  versions 0-1
    error_code  int16     0+
    mechanisms  [string]  0+

request 36 sasl_authenticate  versions 0-2  flexible 2+
    auth_bytes  bytes  0+

response 36 sasl_authenticate  versions 0-2  flexible 2+
    error_code           int16   0+
    error_message        string  0+  nullable 0+
    auth_bytes           bytes   0+
    session_lifetime_ms  int64   1+

request 29 describe_acls  versions 1-3  flexible 2+
    resource_type_filter  int8    0+
    resource_name_filter  string  0+  nullable 0+
    pattern_type_filter   int8    1+  = 3
    principal_filter      string  0+  nullable 0+
    host_filter           string  0+  nullable 0+
    operation             int8    0+
    permission_type       int8    0+

response 29 describe_acls  versions 1-3  flexible 2+
    throttle_time_ms         int32     0+
    error_code               int16     0+
    error_message            string    0+  nullable 0+
    resources                [struct]  0+
        resource_type        int8      0+
        resource_name        string    0+
        pattern_type         int8      1+  = 3
        acls                 [struct]  0+
            principal        string    0+
            host             string    0+
            operation        int8      0+
            permission_type  int8      0+

request 30 create_acls  versions 1-3  flexible 2+
    creations                  [struct]  0+
        resource_type          int8      0+
        resource_name          string    0+
        resource_pattern_type  int8      1+  = 3
        principal              string    0+
        host                   string    0+
        operation              int8      0+
        permission_type        int8      0+

response 30 create_acls  versions 1-3  flexible 2+
    throttle_time_ms   int32     0+
    results            [struct]  0+
        error_code     int16     0+
        error_message  string    0+  nullable 0+

request 31 delete_acls  versions 1-3  flexible 2+
    filters                   [struct]  0+
        resource_type_filter  int8      0+
        resource_name_filter  string    0+  nullable 0+
        pattern_type_filter   int8      1+  = 3
        principal_filter      string    0+  nullable 0+
        host_filter           string    0+  nullable 0+
        operation             int8      0+
        permission_type       int8      0+

response 31 delete_acls  versions 1-3  flexible 2+
    throttle_time_ms         int32     0+
    filter_results           [struct]  0+
        error_code           int16     0+
        error_message        string    0+  nullable 0+
        matching_acls        [struct]  0+
            error_code       int16     0+
            error_message    string    0+  nullable 0+
            resource_type    int8      0+
            resource_name    string    0+
            pattern_type     int8      1+  = 3
            principal        string    0+
            host             string    0+
            operation        int8      0+
            permission_type  int8      0+
"""
