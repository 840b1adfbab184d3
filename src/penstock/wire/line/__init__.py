"""The text protocol: lines that a person can type."""
