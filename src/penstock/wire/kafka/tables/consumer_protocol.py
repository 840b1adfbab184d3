"""What classic group members put into JoinGroup metadata and SyncGroup assignments.

The notation is explained in `schema.py`.
"""

TABLE = """
data consumer_subscription  versions 0-3
    topics            [string]  0+
    user_data         bytes     0+  nullable 0+  = null
    owned_partitions  [struct]  1+
        topic         string    1+
        partitions    [int32]   1+
    generation_id     int32     2+  = -1
    rack_id           string    3+  nullable 3+  = null

data consumer_assignment  versions 0-3
    assigned_partitions  [struct]  0+
        topic            string    0+
        partitions       [int32]   0+
    user_data            bytes     0+  nullable 0+  = null
"""
