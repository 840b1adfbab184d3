"""Tables that batches of rows are added to exactly once."""
