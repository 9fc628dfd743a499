#!/bin/bash
# Runs a main class on one class path: program.sh PROFILE CLASS ARGUMENT...
set -euo pipefail
jars=$FELIX_CACHE/jars-$1
class=$2
shift 2
exec java -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile="$jars/log4j2.properties" \
    -cp "$OUT/classes:$jars/*" "$class" "$@"
