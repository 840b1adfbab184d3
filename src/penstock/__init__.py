"""Penstock: one durable log, every protocol, and Spark at the end of the pipe."""

from penstock._compiled import compiled, obey_environment

__all__ = ["__version__", "compiled"]

__version__ = "0.1.0"

obey_environment()
