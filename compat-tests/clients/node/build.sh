#!/usr/bin/env bash
# The packages of one client, `build.sh kafkajs|confluent`, in $OUT/node_modules.
set -euo pipefail
client=$1
# Only a change of the packages or of this script asks for a new build: the native part takes minutes.
stamp=$(cat "$SRC/$client/package-lock.json" "$SRC/build.sh" | sha256sum)
if [ "$(cat "$OUT/.packages" 2>/dev/null)" = "$stamp" ]; then
    exit 0
fi
cd "$OUT"
cp "$SRC/$client/package.json" "$SRC/$client/package-lock.json" .
npm ci --ignore-scripts --no-audit --no-fund
if [ "$client" = confluent ]; then
    # The package's own install fetches a built binary, or the sources of what librdkafka needs. With this setting its
    # bundled librdkafka is built against the system's libraries and linked dynamically instead.
    export CKJS_LINKING=dynamic
    # The package's makefile starts as many compilers as there are files: keep to the load that the machine can take.
    export MAKEFLAGS="--load-average=$(nproc)"
    home=$(dirname "$(dirname "$(readlink -f "$(command -v node)")")")
    headers=()
    if [ -f "$home/include/node/node.h" ]; then
        headers=(--nodedir="$home")
    fi
    cd node_modules/@confluentinc/kafka-javascript
    nice -n 10 node "$OUT/node_modules/node-gyp/bin/node-gyp.js" rebuild "${headers[@]}"
    # What only the build needed is most of it.
    rm -rf deps/librdkafka build/Release/obj.target build/Release/.deps
fi
echo "$stamp" > "$OUT/.packages"
