#!/usr/bin/env bash
# The program, with the librdkafka that the crate brings, in $OUT/target/release.
set -euo pipefail
cd "$SRC"
nice -n 10 cargo build --quiet --locked --release --jobs 2 --target-dir "$OUT/target"
