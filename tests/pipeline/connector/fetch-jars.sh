#!/bin/sh
# Copies Spark's Kafka connector to .make/jars-spark-kafka; does nothing when it is there already.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
jars="$root/.make/jars-spark-kafka"
[ -d "$jars" ] && exit 0
rm -rf "$jars.partial"
mvn -q -B -f "$here/pom.xml" dependency:copy-dependencies "-DoutputDirectory=$jars.partial"
mv "$jars.partial" "$jars"
