"""Penstock: one durable log, every protocol, and Spark at the end of the pipe."""

__version__ = "0.1.0"
