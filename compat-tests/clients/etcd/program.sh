#!/usr/bin/env bash
# Builds the program that tries the control store and runs it against one etcd server:
#   program.sh SERVER --bootstrap X --prefix Y CASE...
set -euo pipefail
server=$1
# Building belongs to the first case: its clock starts here.
first=${*:6:1}
[ -z "$first" ] || printf '{"begin": "%s"}\n' "$first"
cd "$SRC/../../.."
exec cargo test --quiet --locked --profile compat -p felix-control --test etcd -- "$@"
