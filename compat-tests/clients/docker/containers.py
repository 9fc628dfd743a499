"""Services of a compose file as processes, each in a network namespace with its own address and name, as Docker would.

Runs in network, mount and process namespaces of its own (`unshare`), which end with it.
"""

import os
import pathlib
import re
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time

from files import DOCKER, FELIX, Image, felix_environment, is_etcd, is_felix, ports, volumes

SUBNET = "10.77.0"


def shell(line):
    subprocess.run(shlex.split(line), check=True)


def eventually(what, test, seconds):
    """Tests until it holds; what went wrong the last time is told."""
    last, until = None, time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if test():
                return
        except (OSError, AssertionError, KeyError, ValueError, subprocess.TimeoutExpired) as error:
            last = error
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} s: {what} ({last})")


class Network:
    """A bridge that this machine is at, too, and the names of everybody."""

    def __init__(self, names):
        # `ip netns` keeps its namespaces there.
        shell("mount -t tmpfs tmpfs /run")
        shell("ip link set lo up")
        shell("ip link add felix type bridge")
        shell(f"ip address add {SUBNET}.1/24 dev felix")
        shell("ip link set felix up")
        self.addresses = {name: f"{SUBNET}.{number}" for number, name in enumerate(names, 2)}
        for number, (name, address) in enumerate(self.addresses.items()):
            shell(f"ip netns add {name}")
            shell(f"ip link add veth{number} type veth peer name eth0 netns {name}")
            shell(f"ip link set veth{number} master felix up")
            shell(f"ip -n {name} link set lo up")
            shell(f"ip -n {name} address add {address}/24 dev eth0")
            shell(f"ip -n {name} link set eth0 up")

    def name_everybody(self, folder):
        hosts = folder / "hosts"
        lines = [f"{address} {name}" for name, address in self.addresses.items()]
        hosts.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        hosts.chmod(0o644)
        shell(f"mount --bind {hosts} /etc/hosts")


def moved(text, place, real):
    """A text in which a path of the container is one of this machine."""
    return re.sub(rf"(?<![\w./-]){re.escape(place)}\b", str(real), str(text))


class Ended(Exception):
    """A service ended by itself: nothing is worth waiting for."""


class Container:
    """One service."""

    def __init__(self, name, service, network, folder):
        self.name, self.service, self.process = name, service, None
        self.address = network.addresses[name]
        self.log = folder / f"{name}.log"
        self.image = Image()
        self.prefix = ["ip", "netns", "exec", name]
        self.environment = {"PATH": os.environ["PATH"]} | service.get("environment", {})
        owner = 0
        if is_felix(service):
            self.environment = felix_environment(self.image, service)
            owner = int(self.image.one("USER").partition(":")[0])
            self.restrict(owner)
        self.command = list(service.get("command", []))
        for source, place in volumes(service):
            real = (DOCKER / source).resolve() if source.startswith(".") else folder / "volumes" / source
            if not source.startswith("."):
                real.mkdir(parents=True)
                os.chown(real, owner, owner)
            self.environment = {name: moved(value, place, real) for name, value in self.environment.items()}
            self.command = [moved(word, place, real) for word in self.command]
        out, cache = pathlib.Path(os.environ["OUT"]), pathlib.Path(os.environ["FELIX_CACHE"])
        if is_felix(service):
            # Nobody but root may look into some folders above the clone.
            program = folder / "felix"
            if not program.exists():
                shutil.copy(FELIX, program)
            self.command = [program, *self.image.command("ENTRYPOINT")[1:], *self.command]
        elif is_etcd(service):
            self.command[0] = cache / "etcd-3.6" / "etcd"
        else:
            self.command = [out / name, *self.command]
        self.forward()

    def restrict(self, user):
        """The rights that the image and the service leave it."""
        # Not everybody may raise the limit, but what it is must do.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = self.service["ulimits"]["nofile"]["hard"]
        limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
        self.prefix += ["prlimit", f"--nofile={limit}:{limit}"]
        self.prefix += ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs"]
        self.prefix += ["--bounding-set=-all", "--inh-caps=-all"]

    def start(self):
        log = self.log.open("a")
        self.process = subprocess.Popen(
            [*self.prefix, *map(str, self.command)],
            env=self.environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

    def healthy(self):
        """Whether it runs and its health check is content."""
        if self.process.poll() is not None:
            raise Ended(f"{self.name}: {self.tail()}")
        return self.checked()

    def checked(self):
        """What the image's health check says of a broker; the program is the same, and so are its settings."""
        check = [*self.prefix, self.command[0], *self.image.health_check()[1:]]
        return subprocess.run(check, env=self.environment, capture_output=True, timeout=10).returncode == 0

    def stop(self):
        """As Docker stops it; it must be in time."""
        self.process.terminate()
        grace = int(self.service.get("stop_grace_period", "10s").rstrip("s"))
        code = self.process.wait(timeout=grace)
        # etcd closes everything and then ends by the same signal.
        orderly = {0, -signal.SIGTERM} if is_etcd(self.service) else {0}
        assert code in orderly, f"{self.name} ended with {code}: {self.tail()}"

    def tail(self):
        return self.log.read_text()[-1500:]

    def forward(self):
        """Publishes the service's ports on this machine."""
        for host, outer, inner in ports(self.service):
            listener = socket.create_server((host, outer))
            threading.Thread(target=accept, args=(listener, (self.address, inner)), daemon=True).start()


def accept(listener, target):
    while True:
        client, _ = listener.accept()
        try:
            server = socket.create_connection(target, timeout=5)
        except OSError:
            client.close()
            continue
        server.settimeout(None)
        for one, other in ((client, server), (server, client)):
            threading.Thread(target=pump, args=(one, other), daemon=True).start()


def pump(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        # Either end may go away; the other one hears of it below.
        pass
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            # It has gone already.
            pass
