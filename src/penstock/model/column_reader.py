"""From record batches to columns: the buffers of Arrow arrays, filled straight from the bytes of a batch."""
