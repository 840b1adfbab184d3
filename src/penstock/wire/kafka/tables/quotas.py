"""Client quotas and SCRAM credentials.

The notation is explained in `schema.py`.
"""

TABLE = """
request 48 describe_client_quotas  versions 0-1  flexible 1+
    components       [struct]  0+
        entity_type  string    0+
        match_type   int8      0+
        match        string    0+  nullable 0+
    strict           bool      0+

response 48 describe_client_quotas  versions 0-1  flexible 1+
    throttle_time_ms     int32     0+
    error_code           int16     0+
    error_message        string    0+  nullable 0+
    entries              [struct]  0+  nullable 0+
        entity           [struct]  0+
            entity_type  string    0+
            entity_name  string    0+  nullable 0+
        values           [struct]  0+
            key          string    0+
            value        float64   0+

request 49 alter_client_quotas  versions 0-1  flexible 1+
    entries              [struct]  0+
        entity           [struct]  0+
            entity_type  string    0+
            entity_name  string    0+  nullable 0+
        ops              [struct]  0+
            key          string    0+
            value        float64   0+
            remove       bool      0+
    validate_only        bool      0+

response 49 alter_client_quotas  versions 0-1  flexible 1+
    throttle_time_ms     int32     0+
    entries              [struct]  0+
        error_code       int16     0+
        error_message    string    0+  nullable 0+
        entity           [struct]  0+
            entity_type  string    0+
            entity_name  string    0+  nullable 0+

request 50 describe_user_scram_credentials  versions 0  flexible 0+
    users     [struct]  0+  nullable 0+
        name  string    0+

response 50 describe_user_scram_credentials  versions 0  flexible 0+
    throttle_time_ms      int32     0+
    error_code            int16     0+
    error_message         string    0+  nullable 0+
    results               [struct]  0+
        user              string    0+
        error_code        int16     0+
        error_message     string    0+  nullable 0+
        credential_infos  [struct]  0+
            mechanism     int8      0+
            iterations    int32     0+

request 51 alter_user_scram_credentials  versions 0  flexible 0+
    deletions            [struct]  0+
        name             string    0+
        mechanism        int8      0+
    upsertions           [struct]  0+
        name             string    0+
        mechanism        int8      0+
        iterations       int32     0+
        salt             bytes     0+
        salted_password  bytes     0+

response 51 alter_user_scram_credentials  versions 0  flexible 0+
    throttle_time_ms   int32     0+
    results            [struct]  0+
        user           string    0+
        error_code     int16     0+
        error_message  string    0+  nullable 0+
"""
