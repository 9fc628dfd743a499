#!/usr/bin/env bash
# One program for all clients of this folder.
set -euo pipefail
cd "$SRC"
go build -mod=readonly -o "$OUT/program" .
