#!/usr/bin/env bash
# What the page takes for granted: a built broker, and etcd and Kafka's scripts on the PATH (here: starters for the same main classes).
set -euo pipefail
jars=$FELIX_CACHE/jars-kafka-4
mkdir -p "$jars" "$OUT/bin"
(cd "$SRC/../java/jars" && OUT=$jars ./jars.sh kafka-4)

starter() {
    printf '#!/bin/sh\nexec java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.level=ERROR -cp "%s/*" %s "$@"\n' "$jars" "$2" >"$OUT/bin/$1"
    chmod +x "$OUT/bin/$1"
}
starter kafka-topics.sh org.apache.kafka.tools.TopicCommand
starter kafka-console-consumer.sh org.apache.kafka.tools.consumer.ConsoleConsumer
starter kafka-consumer-groups.sh org.apache.kafka.tools.consumer.group.ConsumerGroupCommand

# etcd as the part `etcd-3.6` builds it.
etcd=$FELIX_CACHE/etcd-3.6
mkdir -p "$etcd"
[ -x "$etcd/etcd" ] || (cd "$SRC/../etcd" && SRC=$PWD OUT=$etcd ./build.sh source)
ln -sf "$etcd/etcd" "$OUT/bin/etcd"

cd "$SRC/../../.."
# The profile that `compat-tests/run` has built already: a release build of its own would cost minutes.
cargo build --quiet --locked --profile compat --package felix-broker
