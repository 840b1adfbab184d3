"""Built-in pipelines, each a function `run(spark, options)` and a command of the same name."""
