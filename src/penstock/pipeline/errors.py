"""What can go wrong between a topic and Spark. Each message names the thing, its value, and what to do."""

from penstock.model.errors import PenstockError


class PipelineError(PenstockError):
    """Root of what pipelines say by themselves."""


class SparkMissing(PipelineError):
    """PySpark is not installed, or is too old."""


class JavaMissing(PipelineError):
    """There is no Java that Spark could run on."""


class InvalidOption(PipelineError):
    """An option of a source or a sink has a name or a value that is not known."""


class DataLost(PipelineError):
    """Records that were to be read are not there any more."""


class TopicReplaced(DataLost):
    """A topic's name stands for another topic now, in which offsets mean other records."""


class SchemaMismatch(PipelineError):
    """A value does not fit the schema that it was to be read with."""
