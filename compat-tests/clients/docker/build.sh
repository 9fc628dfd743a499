#!/usr/bin/env bash
# What the images of docker/ hold beside Felix, as programs: etcd as the part `etcd-3.6` builds it, and Debian's Prometheus.
# The package is only unpacked: installing it would leave a service running.
set -euo pipefail
etcd=$FELIX_CACHE/etcd-3.6
mkdir -p "$etcd"
[ -x "$etcd/etcd" ] || (cd "$SRC/../etcd" && SRC=$PWD OUT=$etcd ./build.sh source)

work=$OUT/package
rm -rf "$work"
mkdir -p "$work"
cd "$work"
# The package lists may be old or empty: ask for them only when the first try failed.
fetch=(apt-get -o APT::Sandbox::User=root download prometheus)
"${fetch[@]}" || { apt-get -o DPkg::Lock::Timeout=180 update -q && "${fetch[@]}"; }
dpkg-deb -x ./prometheus_*.deb unpacked
mv unpacked/usr/bin/prometheus unpacked/usr/bin/promtool "$OUT"
cd "$OUT"
rm -rf "$work"
"$OUT/promtool" --version
