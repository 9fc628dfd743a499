#!/bin/bash
# Copies the class path of one profile of pom.xml into $OUT.
set -euo pipefail
rm -f "$OUT"/*.jar
mvn -q -B -P "$1" dependency:copy-dependencies -DoutputDirectory="$OUT" -DincludeScope=runtime
cp log4j2.properties "$OUT/"
