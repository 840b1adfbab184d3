"""What makes `spark.read.format("penstock")` work without registration: Spark looks for modules named pyspark_<format>."""
