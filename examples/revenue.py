"""Revenue per minute into a table, and alerts into a topic: the pipeline of `make demo`.

    penstock pipeline run examples/revenue.py              until Ctrl-C, or 'penstock pipeline stop revenue'
    penstock pipeline run examples/revenue.py --once       what is there now

It reads two topics that different kinds of clients write: orders, which a web shop posts by HTTP, and readings, which
the sensors of its fridges send by UDP. What was done so far is in the checkpoint: kill it and start it again, and each
order is counted exactly once.
"""

from pyspark.sql import functions as F  # noqa: N812

from penstock.pipeline.batches import to_table

LARGE = 180.0  # euros
WARM = 7.5  # degrees


def pipeline(spark, server, checkpoint, trigger):
    orders = values(spark, server, "orders", "order_id BIGINT, country STRING, amount DOUBLE, at TIMESTAMP")
    readings = values(spark, server, "readings", "degrees DOUBLE")

    # A minute is final when an order comes that is two minutes younger: orders may be a minute late.
    revenue = (
        orders.withWatermark("at", "1 minute")
        .groupBy(F.window("at", "1 minute"))
        .agg(F.sum("amount").alias("revenue"), F.count("*").alias("orders"))
        .select(F.col("window.start").alias("minute"), "revenue", "orders")
    )
    place = f"{checkpoint}/revenue"
    into_table = (
        revenue.writeStream.queryName("revenue")
        .foreachBatch(to_table(f"{checkpoint}/tables/revenue", checkpoint=place))
        .option("checkpointLocation", place)
        .trigger(**trigger)
        .start()
    )

    large = orders.where(F.col("amount") >= LARGE).select(
        F.col("country").alias("key"),
        F.to_json(F.struct(F.lit("large order").alias("alert"), "order_id", "amount")).alias("value"),
    )
    warm = readings.where(F.col("degrees") >= WARM).select(
        F.col("key").cast("string"),
        F.to_json(F.struct(F.lit("warm fridge").alias("alert"), "degrees")).alias("value"),
    )
    into_topic = (
        large.unionByName(warm)
        .writeStream.queryName("alerts")
        .format("penstock")
        .option("server", server)
        .option("topic", "alerts")
        .option("checkpointLocation", f"{checkpoint}/alerts")
        .trigger(**trigger)
        .start()
    )
    return [into_table, into_topic]


def values(spark, server, topic, schema):
    """A topic's JSON values as columns, with the records' keys."""
    records = (
        spark.readStream.format("penstock")
        .option("server", server)
        .option("topics", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    parsed = records.select("key", F.from_json(F.col("value").cast("string"), schema).alias("value"))
    return parsed.select("key", "value.*")
