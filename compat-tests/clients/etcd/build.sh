#!/usr/bin/env bash
# An etcd server in $OUT/etcd: `source` builds the newest line from its sources (a Go module), `debian` takes the one that
# Debian ships. The package is only unpacked: installing it would leave a service running.
set -euo pipefail
case $1 in
source)
    cd "$SRC"
    CGO_ENABLED=0 nice -n 5 go build -mod=readonly -ldflags=-s -o "$OUT/etcd" .
    ;;
debian)
    work=$OUT/package
    rm -rf "$work"
    mkdir -p "$work"
    cd "$work"
    # The package lists may be old or empty: ask for them only when the first try failed.
    fetch=(apt-get -o APT::Sandbox::User=root download etcd-server)
    "${fetch[@]}" || { apt-get -o DPkg::Lock::Timeout=180 update -q && "${fetch[@]}"; }
    dpkg-deb -x ./etcd-server_*.deb unpacked
    mv unpacked/usr/bin/etcd "$OUT/etcd"
    cd "$OUT"
    rm -rf "$work"
    ;;
esac
"$OUT/etcd" --version
