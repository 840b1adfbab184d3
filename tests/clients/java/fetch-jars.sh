#!/bin/sh
# Copies the Java clients that the tests drive to .make/jars-<version>; does nothing when they are there already.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
for version in ${KAFKA_CLIENTS:-3.9.1 4.1.0}; do
    jars="$root/.make/jars-$version"
    [ -d "$jars" ] && continue
    rm -rf "$jars.partial"
    mvn -q -B -f "$here/pom.xml" "-Dkafka.version=$version" dependency:copy-dependencies "-DoutputDirectory=$jars.partial"
    mv "$jars.partial" "$jars"
done
