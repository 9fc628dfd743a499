#!/bin/bash
# Compiles source folders against one class path: build.sh PROFILE FOLDER...
set -euo pipefail
profile=$1
shift
jars=$FELIX_CACHE/jars-$profile
mkdir -p "$jars"
(cd jars && OUT=$jars ./jars.sh "$profile")
rm -rf "$OUT/classes"
mapfile -t sources < <(for folder in "$@"; do find "src/$folder" -name '*.java'; done)
javac -nowarn -Xlint:-options -d "$OUT/classes" -cp "$jars/*" "${sources[@]}"
