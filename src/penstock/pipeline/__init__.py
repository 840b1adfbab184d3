"""Spark: topics as sources, sinks and tables. Nothing outside this room and the command line knows Spark."""
