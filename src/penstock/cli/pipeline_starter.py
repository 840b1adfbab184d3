"""Pipelines to begin with, each with its comments; what is written depends on the file's name.

.py    queries that go on (or, if asked, datasets and flows that Spark puts in order)
.sql   datasets and flows in SQL
.yml   the specification of a pipeline of several files
"""

from pathlib import Path

from penstock.cli.terminal import CommandFailed

STARTERS = (".py", ".sql", ".yml")

EXAMPLES = '''
def example_orders(server):
    """A few orders to look at. Delete this when you have orders of your own."""
    import random
    import penstock

    with penstock.SyncClient(server) as client:
        if "@TOPIC@" in {topic.name for topic in client.topics()}:
            return
        client.create_topic("@TOPIC@")
        orders = [
            {"order_id": number, "country": random.choice(["NL", "DE", "FR"]), "amount": random.randint(1, 200)}
            for number in range(1_000)
        ]
        client.publish_many("@TOPIC@", [{**order, "amount": float(order["amount"])} for order in orders])
'''

PLAIN = '''"""Large orders of the topic @TOPIC@ go to @TOPIC@.large; the revenue of each country is kept up to date.

    penstock pipeline run @FILE@                  until Ctrl-C, or 'penstock pipeline stop @NAME@'
    penstock pipeline run @FILE@ --once           what is there now
    penstock subscribe @TOPIC@.large              what comes out

Stop it, kill it, start it again: each order is dealt with exactly once. What was done so far is in the checkpoint.
"""

from penstock.pipeline.batches import to_topic
from pyspark.sql import functions as F

# The fields of a value. Values are JSON; what a value does not have is null.
SCHEMA = "order_id BIGINT, country STRING, amount DOUBLE"


def pipeline(spark, server, checkpoint, trigger):
    """Returns the streaming queries that it started.

    Name the parameters that you want: server, checkpoint (a directory), trigger, name, once.
    """
    example_orders(server)

    orders = (
        spark.readStream.format("penstock")
        .option("server", server)
        .option("topics", "@TOPIC@")  # several: "orders,returns"; or topicPattern
        .option("startingOffsets", "earliest")  # where the first run begins; later ones go on
        .option("group", "@NAME@")  # so 'penstock group describe @NAME@' shows the lag
        .load()  # key, value, topic, partition, offset, timestamp, headers
        .select("key", "timestamp", F.from_json(F.col("value").cast("string"), SCHEMA).alias("order"))
        .select("key", "timestamp", "order.*")
    )

    # Into a topic: columns key and value, exactly once.
    large = (
        orders.where("amount >= 150")
        .select(
            F.col("country").alias("key"),
            F.to_json(F.struct("order_id", "country", "amount")).alias("value"),
        )
        .writeStream.queryName("large")
        .format("penstock")
        .option("server", server)
        .option("topic", "@TOPIC@.large")
        .option("checkpointLocation", f"{checkpoint}/large")
        .trigger(**trigger)
        .start()
    )

    # A running total: a record whenever one changes. The mode "update" goes batch by batch, exactly once, too.
    place = f"{checkpoint}/revenue"
    revenue = (
        orders.groupBy("country")
        .agg(F.sum("amount").alias("revenue"), F.count("*").alias("orders"))
        .select(F.col("country").alias("key"), F.to_json(F.struct("country", "revenue", "orders")).alias("value"))
        .writeStream.queryName("revenue")
        .outputMode("update")
        .foreachBatch(to_topic(server, "@TOPIC@.revenue", checkpoint=place))
        .option("checkpointLocation", place)
        .trigger(**trigger)
        .start()
    )
    return [large, revenue]

@EXAMPLES@'''

DECLARATIVE = '''"""A declarative pipeline: say which datasets there are, and Spark brings them up to date.

    penstock pipeline run @FILE@                        once
    penstock pipeline run @FILE@ --trigger '1 minute'   again and again
    penstock pipeline run @FILE@ --full-refresh         compute everything anew

Tables lie in .penstock/@NAME@/warehouse beside this file.
"""

from pyspark import pipelines as dp
from pyspark.sql import functions as F
@EXAMPLES@

server = spark.conf.get("penstock.server")  # where 'penstock pipeline run' was told the broker is
example_orders(server)


@dp.temporary_view
def orders_raw():
    return (
        spark.readStream.format("penstock")
        .option("server", server)
        .option("topics", "@TOPIC@")
        .option("startingOffsets", "earliest")
        .load()
    )


@dp.table(comment="Every order, as it came. Each run adds what is new.")
def orders():
    schema = "order_id BIGINT, country STRING, amount DOUBLE"
    value = F.from_json(F.col("value").cast("string"), schema)
    return spark.readStream.table("orders_raw").select("timestamp", value.alias("order")).select("timestamp", "order.*")


@dp.materialized_view(comment="Computed anew by each run.")
def revenue():
    return spark.read.table("orders").groupBy("country").agg(F.sum("amount").alias("revenue"))


# Into a topic, exactly once.
dp.create_sink("large_orders", "penstock", {"server": server, "topic": "@TOPIC@.large"})


@dp.append_flow(target="large_orders")
def large():
    order = F.to_json(F.struct("order_id", "country", "amount"))
    return spark.readStream.table("orders").where("amount >= 150").select(
        F.col("country").alias("key"), order.alias("value")
    )
'''

SQL = """-- A declarative pipeline in SQL: say which datasets there are, and Spark brings them up to date.
--
--     penstock pipeline run @FILE@                        once
--     penstock pipeline run @FILE@ --trigger '1 minute'   again and again
--     penstock publish @TOPIC@ '{"order_id": 1, "country": "NL", "amount": 160}'
--
-- The comments that follow are read: which topics are views, with the fields of their JSON values (leave them out to
-- have them inferred), and which views go into topics. A view also has _key, _timestamp, _topic, _partition and
-- _offset.
--
-- topic @TOPIC@ as incoming (order_id BIGINT, country STRING, amount DOUBLE)
-- sink @TOPIC@.large from large

-- Every order, as it came. Each run adds what is new. Tables lie in .penstock/@NAME@/warehouse beside this file.
CREATE STREAMING TABLE all_orders AS
SELECT order_id, country, amount, _timestamp AS at FROM STREAM incoming;

-- Computed anew by each run.
CREATE MATERIALIZED VIEW revenue AS
SELECT country, sum(amount) AS revenue, count(*) AS orders FROM all_orders GROUP BY country;

-- Into a topic, exactly once, by the comment above: columns key and value.
CREATE TEMPORARY VIEW large AS
SELECT country AS key, to_json(struct(order_id, country, amount)) AS value FROM STREAM all_orders WHERE amount >= 150;
"""

SPECIFICATION = """# A declarative pipeline of several files. Run it with: penstock pipeline run @FILE@
name: @NAME@
# Where Spark keeps how far each flow is. It must be an absolute place.
storage: file://@STORAGE@
database: default
# Settings of Spark.
configuration:
  spark.sql.shuffle.partitions: "4"
# Python and SQL files beside this one; 'penstock pipeline new transformations/orders.sql' writes one.
libraries:
  - glob:
      include: transformations/**
"""


def starter(path: Path, declarative: bool, topic: str) -> str:
    if path.suffix == ".py":
        text = DECLARATIVE if declarative else PLAIN
    elif path.suffix == ".sql":
        text = SQL
    elif path.suffix in (".yml", ".yaml"):
        text = SPECIFICATION
    else:
        raise CommandFailed(f"{path.name}: a pipeline's file ends in {', '.join(STARTERS)}")
    name = path.stem
    storage = path.absolute().parent / ".penstock" / name / "storage"
    for word, meant in (
        ("@EXAMPLES@", EXAMPLES),
        ("@TOPIC@", topic),
        ("@FILE@", str(path)),
        ("@NAME@", name),
        ("@STORAGE@", str(storage)),
    ):
        text = text.replace(word, meant)
    return text
