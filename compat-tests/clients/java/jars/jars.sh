#!/bin/bash
# Copies the class path of one profile of pom.xml into $OUT, unless it is there already.
set -euo pipefail
sum=$(cat pom.xml log4j2.properties "$0" | sha256sum)
if [ "$(cat "$OUT/.jars" 2>/dev/null)" != "$sum" ]; then
    rm -f "$OUT"/*.jar
    mvn -q -B -P "$1" dependency:copy-dependencies -DoutputDirectory="$OUT" -DincludeScope=runtime
    cp log4j2.properties "$OUT/"
    echo "$sum" >"$OUT/.jars"
fi
