"""The case `static`: the image's binary, built as the Dockerfile builds it and run where there is nothing else.

The root directory that it sees holds what Docker gives a container, /proc and three files in /etc, and the binary. Its
listener is a name of /etc/hosts, etcd's is one that only DNS knows: a static C library must find both without its shared parts.
"""

import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading

from containers import eventually, shell
from files import PROJECT, Image, run

HOST = "felix-here"
ETCD = "etcd-somewhere"


def build():
    """Where the binary is, or a failure; takes minutes."""
    code, said = run("rustc", "-vV")
    target = next(line.split()[1] for line in said.splitlines() if line.startswith("host:"))
    (command,) = [rest for rest in Image().all("RUN", 0) if "cargo build" in rest]
    # The same words that the image is built with, from the clone instead of a copy of it.
    words = "cargo build --locked --release --package felix-broker --target"
    assert words in command and "RUSTFLAGS='-C target-feature=+crt-static'" in command, command
    folder = pathlib.Path(os.environ["OUT"]) / "static"
    environment = os.environ | {"RUSTFLAGS": "-C target-feature=+crt-static", "CARGO_TARGET_DIR": str(folder)}
    subprocess.run([*words.split(), target], cwd=PROJECT, env=environment, check=True, stdout=sys.stderr)
    binary = folder / "felix"
    subprocess.run(["strip", "--strip-debug", "-o", binary, folder / target / "release" / "felix"], check=True)
    code, said = run("readelf", "--program-headers", binary)
    assert code == 0 and "INTERP" not in said, said
    return binary


def answer_names():
    """A DNS server that knows one name."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 53))

    def serve():
        while True:
            question, client = server.recvfrom(512)
            at, labels = 12, []
            while length := question[at]:
                labels.append(question[at + 1 : at + 1 + length].decode())
                at += length + 1
            (kind,) = struct.unpack(">H", question[at + 1 : at + 3])
            known = labels == [ETCD]
            # A pointer to the name in the question, an address for a minute.
            record = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + bytes([127, 0, 0, 1])
            records = record if known and kind == 1 else b""
            head = struct.pack(">HHHHH", 0x8180 if known else 0x8183, 1, len(records) // 16, 0, 0)
            server.sendto(question[:2] + head + question[12 : at + 5] + records, client)

    threading.Thread(target=serve, daemon=True).start()


def main(binary):
    shell("ip link set lo up")
    answer_names()
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder) / "root"
        for place in ("etc", "proc", "data"):
            (root / place).mkdir(parents=True)
        (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n127.0.0.2 {HOST}\n")
        (root / "etc/resolv.conf").write_text("nameserver 127.0.0.1\n")
        (root / "etc/hostname").write_text(f"{HOST}\n")
        shutil.copy(binary, root / "felix")
        os.chown(root / "data", 65532, 65532)
        shell(f"mount -t proc proc {root}/proc")
        server = pathlib.Path(os.environ["FELIX_CACHE"]) / "etcd-3.6" / "etcd"
        with (pathlib.Path(folder) / "log").open("w") as log:
            etcd = subprocess.Popen([server, "--data-dir", f"{folder}/etcd", "--log-level=error"], stderr=log)
            inside = ["chroot", "--userspec=65532:65532", root, "/felix"]
            settings = ["--data-dir=/data", f"--listeners=PLAINTEXT://{HOST}:9092", f"--metrics-bind={HOST}:9644"]
            felix = subprocess.Popen([*inside, *settings, f"--etcd={ETCD}:2379"], env={}, stderr=log)
            health = [*inside, "health", f"--metrics-bind={HOST}:9644"]
            try:
                eventually("it is ready", lambda: subprocess.run(health, env={}, stderr=log).returncode == 0, 20)
                told = subprocess.run(["kcat", "-L", "-b", "127.0.0.2:9092"], capture_output=True, text=True, timeout=20)
                assert f"{HOST}:9092" in told.stdout, told
                felix.terminate()
                assert felix.wait(timeout=30) == 0
            except BaseException:
                sys.stderr.write((pathlib.Path(folder) / "log").read_text()[-2000:])
                raise
            finally:
                felix.kill()
                etcd.kill()
                felix.wait()
                etcd.wait()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
