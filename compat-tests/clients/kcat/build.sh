#!/usr/bin/env bash
# kcat on librdkafka 1.8.2, which many images and distributions still ship, in $OUT/bin.
# librdkafka's sources come from the crate that carries them, kcat's from Debian's source package.
set -euo pipefail
kcat=1.7.1
checksum=4b957b7ffc728a88e163bc4e581aa371e56c7e74c8b84b1fe0583d0302ef8d58

stamp=$(cat "$SRC/build.sh" "$SRC/librdkafka-1.8/Cargo.lock" | sha256sum)
if [ "$(cat "$OUT/.kcat" 2>/dev/null)" = "$stamp" ]; then
    exit 0
fi
work=$OUT/build
rm -rf "$work"
mkdir -p "$work"

cd "$SRC/librdkafka-1.8"
cargo vendor --quiet --locked "$work/crates" >/dev/null
cd "$work/crates/rdkafka-sys/librdkafka"
./configure --prefix="$OUT" --disable-gssapi --disable-lz4-ext
# The C library alone: neither the C++ one nor examples.
nice -n 10 make -j2 -C src
make -C src install

# The system's own package sources, asked for sources: no list of the machine is changed.
mkdir -p "$work/apt/sources" "$work/apt/lists/partial"
for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [ -f "$list" ] && sed -n 's/^deb /deb-src /p' "$list" >> "$work/apt/sources/all.list"
done
for list in /etc/apt/sources.list.d/*.sources; do
    [ -f "$list" ] && sed 's/^Types: .*/Types: deb-src/' "$list" > "$work/apt/sources/$(basename "$list")"
done
options=(-o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$work/apt/sources"
    -o Dir::State::Lists="$work/apt/lists" -o APT::Sandbox::User=root)
cd "$work"
# Other people's archives on the machine may have no sources; what counts is that the next line finds kcat's.
apt-get "${options[@]}" update -q || true
apt-get "${options[@]}" source --download-only --tar-only kafkacat
echo "$checksum  kafkacat_$kcat.orig.tar.gz" | sha256sum --check
tar xzf "kafkacat_$kcat.orig.tar.gz"
cd "kafkacat-$kcat"
# The path within the program keeps a librdkafka of the system from being taken in its place.
CPPFLAGS="-I$OUT/include" LDFLAGS="-L$OUT/lib -Wl,-rpath,$OUT/lib" PKG_CONFIG_PATH="$OUT/lib/pkgconfig" ./configure --prefix="$OUT"
make
make install
"$OUT/bin/kcat" -V
"$OUT/bin/kcat" -V | grep -q "librdkafka 1.8.2"
"$OUT/bin/kcat" -V | grep -q JSON
rm -rf "$work"
echo "$stamp" > "$OUT/.kcat"
