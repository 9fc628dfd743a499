#!/usr/bin/env bash
# An etcd server in $OUT/etcd, with the tools that save and restore snapshots beside it: `source` builds the newest line from its sources (a Go module), `debian` takes the one that
# Debian ships. The package is only unpacked: installing it would leave a service running.
set -euo pipefail
case $1 in
source)
    cd "$SRC"
    CGO_ENABLED=0 nice -n 5 go build -mod=readonly -ldflags=-s -o "$OUT/etcd" .
    CGO_ENABLED=0 nice -n 5 go build -mod=readonly -ldflags=-s -o "$OUT/" go.etcd.io/etcd/etcdctl/v3 go.etcd.io/etcd/etcdutl/v3
    ;;
debian)
    work=$OUT/package
    rm -rf "$work"
    mkdir -p "$work"
    cd "$work"
    # The package lists may be old or empty: ask for them only when the first try failed.
    fetch=(apt-get -o APT::Sandbox::User=root download etcd-server etcd-client)
    "${fetch[@]}" || { apt-get -o DPkg::Lock::Timeout=180 update -q && "${fetch[@]}"; }
    for package in ./*.deb; do
        dpkg-deb -x "$package" unpacked
    done
    mv unpacked/usr/bin/etcd unpacked/usr/bin/etcdctl "$OUT/"
    cd "$OUT"
    rm -rf "$work"
    ;;
esac
"$OUT/etcd" --version
