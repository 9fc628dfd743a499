"""The case `compose`: the compose files against the real binary, and each value against the others."""

import re

from files import COMPOSE, DOCKER, FELIX, PROJECT, Image, compose, felix_environment, is_etcd, is_felix
from files import listeners, ports, run, volumes

# What the files may say, so that a word that Compose would ignore or refuse is noticed.
TOP = {"name", "services", "volumes"}
SERVICE = {
    "build", "cap_drop", "command", "depends_on", "environment", "healthcheck", "hostname", "image", "ports",
    "pull_policy", "read_only", "restart", "security_opt", "stop_grace_period", "ulimits", "volumes",
}
HEALTH = {"test", "interval", "timeout", "retries", "start_period", "start_interval"}
# A broker gives up a planned stop after 25 s, and answers what is under way before.
LEAST_GRACE_SECONDS = 30


def check():
    image = Image()
    for name in COMPOSE:
        file = compose(name)
        try:
            shape(file)
            references(file)
            for service_name, service in file["services"].items():
                if is_felix(service):
                    broker(image, file, service_name, service)
                    settings(image, service)
                if is_etcd(service):
                    etcd(service_name, service)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None
    built()


def shape(file):
    unknown = {word for word in file if not word.startswith("x-")} - TOP
    assert not unknown, f"{unknown} at the top"
    for name, service in file["services"].items():
        assert set(service) <= SERVICE, f"{name}: {set(service) - SERVICE}"
        assert set(service.get("healthcheck", {})) <= HEALTH, f"{name}: {set(service['healthcheck']) - HEALTH}"
        for variable, value in service.get("environment", {}).items():
            assert isinstance(value, str), f"{name}: {variable} must be a text, or Compose may write it otherwise"
        tag = service["image"].partition(":")[2]
        assert is_felix(service) or (tag and tag != "latest"), f"{name}: {service['image']} is not pinned"


def references(file):
    """Everything that is named is there, and everything that is there is used."""
    services, declared, used, taken = file["services"], set(file.get("volumes", {})), set(), set()
    for name, service in services.items():
        for other, wanted in service.get("depends_on", {}).items():
            assert other in services, f"{name} depends on {other}, which is not there"
            checked = is_felix(services[other]) or "healthcheck" in services[other]
            assert checked or wanted["condition"] != "service_healthy", f"{other} can never be healthy"
        for source, place in volumes(service):
            if source.startswith("."):
                assert (DOCKER / source).exists(), f"{name} mounts {source}, which is not there"
            else:
                assert source in declared, f"{name} uses the volume {source}, which is not declared"
                assert source not in used, f"two services write to {source}"
                used.add(source)
        for address, outer, _ in ports(service):
            assert address == "127.0.0.1", f"{name} is open to everybody at {outer}"
            assert outer not in taken, f"two services are published at {outer}"
            taken.add(outer)
        assert service.get("hostname", name) == name, f"{name} calls itself {service['hostname']}"
    assert used == declared, f"nobody uses {declared - used}"


def broker(image, file, name, service):
    """Containers and this machine are each told what they can reach."""
    environment = felix_environment(image, service)
    bound = listeners(environment["FELIX_LISTENERS"])
    told = listeners(environment["FELIX_ADVERTISED_LISTENERS"])
    assert set(bound) == set(told) == {"PLAINTEXT", "HOST"}, f"{name}: {bound} {told}"
    assert told["PLAINTEXT"] == (name, bound["PLAINTEXT"][1]), f"{name} tells containers {told['PLAINTEXT']}"
    published = {inner: outer for _, outer, inner in ports(service)}
    host, port = told["HOST"]
    assert host == "localhost", f"{name} tells this machine {host}"
    assert published.get(bound["HOST"][1]) == port, f"{name} tells this machine {port}, published is {published}"
    assert bound["PLAINTEXT"][1] not in published, f"{name}: a client of this machine would be told names of containers"
    metrics = int(environment["FELIX_BROKER_METRICS_BIND"].rsplit(":", 1)[1])
    assert metrics in published, f"{name}: nobody reaches the metrics"
    assert (environment["FELIX_DATA_DIR"] in dict((place, source) for source, place in volumes(service))), name
    seconds = re.fullmatch(r"(\d+)s", service["stop_grace_period"])
    assert int(seconds.group(1)) >= LEAST_GRACE_SECONDS, f"{name} is killed while it stops"
    assert service["read_only"] and service["cap_drop"] == ["ALL"], name
    limits = service["ulimits"]["nofile"]
    assert limits["soft"] == limits["hard"] >= 65536, f"{name}: {limits}"
    places = [f"{other}:2379" for other, one in file["services"].items() if is_etcd(one)]
    assert environment.get("FELIX_ETCD_ENDPOINTS", "") == ",".join(places), f"{name}: etcd is at {places}"
    if places:
        internal = environment["FELIX_INTERNAL_BIND"].rsplit(":", 1)[1]
        assert environment["FELIX_INTERNAL_ADVERTISE"] == f"{name}:{internal}", f"{name}: other brokers cannot dial it"
    ids = [one["environment"].get("FELIX_NODE_ID", "1") for one in file["services"].values() if is_felix(one)]
    assert len(set(ids)) == len(ids), f"two brokers have one id: {ids}"


def settings(image, service):
    """The binary itself says whether it would start with that."""
    environment = felix_environment(image, service)
    known = (PROJECT / "docs" / "configuration.md").read_text()
    for variable in environment:
        assert not variable.startswith("FELIX_") or f"`{variable}`" in known, f"there is no {variable}"
    command = service.get("command", [])
    code, said = run(FELIX, "--check-config", *command, env=environment)
    assert code == 0 and said.endswith("felix: the settings are good\n"), said
    # It would say no, too.
    code, said = run(FELIX, "--check-config", *command, env=environment | {"FELIX_NODE_ID": "one"})
    assert code == 2 and "FELIX_NODE_ID" in said, f"{code}: {said}"


def etcd(name, service):
    """As the page on the control plane asks; the case `cluster` starts it."""
    page = (PROJECT / "docs" / "control-plane.md").read_text()
    for variable, flag in (
        ("ETCD_AUTO_COMPACTION_MODE", "--auto-compaction-mode"),
        ("ETCD_AUTO_COMPACTION_RETENTION", "--auto-compaction-retention"),
    ):
        wanted = f"{flag}={service['environment'][variable]}"
        assert wanted in page, f"{name} has {wanted}, docs/control-plane.md says otherwise"
    assert service["environment"]["ETCD_DATA_DIR"] in [place for _, place in volumes(service)], f"{name} keeps nothing"
    members = dict(one.split("=", 1) for one in service["environment"]["ETCD_INITIAL_CLUSTER"].split(","))
    flags = dict(word.split("=", 1) for word in service["command"][1:])
    assert flags["--name"] == name, flags
    assert flags["--initial-advertise-peer-urls"] == members[name], f"{flags} {members}"


def built():
    """The first file builds the image that the second one only uses."""
    (service,) = compose("compose.yaml")["services"].values()
    build = service["build"]
    assert (DOCKER / build["context"] / build["dockerfile"]).resolve() == DOCKER / "Dockerfile", build
    for name, service in compose("compose.cluster.yaml")["services"].items():
        assert not is_felix(service) or service["pull_policy"] == "never", f"{name} would be asked for elsewhere"
