"""Settings of topics, brokers and groups.

The notation is explained in `schema.py`.
"""

TABLE = """
request 32 describe_configs  versions 1-4  flexible 4+
    resources               [struct]  0+
        resource_type       int8      0+
        resource_name       string    0+
        configuration_keys  [string]  0+  nullable 0+
    include_synonyms        bool      1+
    include_documentation   bool      3+

response 32 describe_configs  versions 1-4  flexible 4+
    throttle_time_ms       int32     0+
    results                [struct]  0+
        error_code         int16     0+
        error_message      string    0+  nullable 0+
        resource_type      int8      0+
        resource_name      string    0+
        configs            [struct]  0+
            name           string    0+
            value          string    0+  nullable 0+
            read_only      bool      0+
            config_source  int8      1+  = -1
            is_sensitive   bool      0+
            synonyms       [struct]  1+
                name       string    1+
                value      string    1+  nullable 0+
                source     int8      1+
            config_type    int8      3+
            documentation  string    3+  nullable 0+

request 33 alter_configs  versions 0-2  flexible 2+
    resources          [struct]  0+
        resource_type  int8      0+
        resource_name  string    0+
        configs        [struct]  0+
            name       string    0+
            value      string    0+  nullable 0+
    validate_only      bool      0+

response 33 alter_configs  versions 0-2  flexible 2+
    throttle_time_ms   int32     0+
    responses          [struct]  0+
        error_code     int16     0+
        error_message  string    0+  nullable 0+
        resource_type  int8      0+
        resource_name  string    0+

request 44 incremental_alter_configs  versions 0-1  flexible 1+
    resources                 [struct]  0+
        resource_type         int8      0+
        resource_name         string    0+
        configs               [struct]  0+
            name              string    0+
            config_operation  int8      0+
            value             string    0+  nullable 0+
    validate_only             bool      0+

response 44 incremental_alter_configs  versions 0-1  flexible 1+
    throttle_time_ms   int32     0+
    responses          [struct]  0+
        error_code     int16     0+
        error_message  string    0+  nullable 0+
        resource_type  int8      0+
        resource_name  string    0+

request 74 list_config_resources  versions 0-1  flexible 0+
    resource_types  [int8]  1+

response 74 list_config_resources  versions 0-1  flexible 0+
    throttle_time_ms   int32     0+
    error_code         int16     0+
    config_resources   [struct]  0+
        resource_name  string    0+
        resource_type  int8      1+  = 16
"""
