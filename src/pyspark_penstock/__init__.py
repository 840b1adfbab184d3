"""Spark looks for data sources in modules of this name, and finds ours without being told: `format("penstock")`.

It imports every such module there is, for whatever source is asked for, so this one must not fail in a session that is
none of its business: without Arrow there is simply no such source.
"""

from importlib.util import find_spec

if find_spec("pyarrow") is not None:
    from penstock.pipeline.source import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
