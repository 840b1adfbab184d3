"""From columns to record batches: the bytes of a batch, written straight from the buffers of Arrow arrays."""
