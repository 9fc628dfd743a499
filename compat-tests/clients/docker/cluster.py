"""The case `cluster`: what compose.cluster.yaml describes, run with the real programs and looked at from everywhere.

Grafana and the UI are not run; their places are taken by queries and by kcat.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request

import monitoring
from containers import Container, Network, eventually
from files import compose, is_etcd, is_felix, listeners

# Series that exist only once something of their kind has happened.
RARE = {"felix_connections_refused_total", "felix_throttled_total"}


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()


def query(expr):
    """What Prometheus answers; it must be a good question."""
    answer = json.loads(get("http://127.0.0.1:9090/api/v1/query?" + urllib.parse.urlencode({"query": expr})))
    assert answer["status"] == "success", f"{expr}: {answer}"
    return answer["data"]["result"]


def kcat(*arguments, inside=None, given=None):
    """kcat on this machine, or in the place of a service."""
    prefix = ["ip", "netns", "exec", inside] if inside else []
    done = subprocess.run(
        [*prefix, "kcat", *arguments], input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30
    )
    assert done.returncode == 0, f"kcat {arguments}: {done.stdout}"
    return done.stdout


def brokers(bootstrap, inside=None):
    """The addresses that a client is told."""
    told = json.loads(kcat("-L", "-J", "-b", bootstrap, inside=inside))
    return {broker["name"] for broker in told["brokers"]}


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        folder.chmod(0o755)
        services = compose("compose.cluster.yaml")["services"]
        network = Network(services)
        network.name_everybody(folder)
        run = {
            name: Container(name, service, network, folder)
            for name, service in services.items()
            if is_felix(service) or is_etcd(service) or name == "prometheus"
        }
        try:
            look(run, services)
        except BaseException:
            for container in run.values():
                text = container.tail() if container.log.exists() else "never started"
                print(f"--- {container.name}\n{text}", file=sys.stderr)
            raise


def look(run, services):
    members = [one for one in run.values() if is_etcd(one.service)]
    felix = [one for one in run.values() if is_felix(one.service)]
    for one in members:
        one.start()
    for one in members:
        eventually(f"{one.name} is healthy", lambda: "true" in get(f"http://{one.address}:2379/health"), 60)
        assert "unrecognized environment variable" not in one.log.read_text(), one.tail()
    for one in felix:
        assert not one.checked(), f"{one.name} is healthy before it runs"
        one.start()
    run["prometheus"].start()
    for one in felix:
        eventually(f"{one.name} is healthy", one.healthy, 60)
    reached(felix, services)
    scraped(len(members) + len(felix))
    stopped(felix)
    for one in [*felix, run["prometheus"], *members]:
        one.stop()


def reached(felix, services):
    """Containers are told containers' names, this machine its own ports, and both get at all records."""
    inside = services["ui"]["environment"]["KAFKA_CLUSTERS_0_BOOTSTRAPSERVERS"]
    told = [listeners(one.environment["FELIX_ADVERTISED_LISTENERS"])["HOST"] for one in felix]
    outside = ",".join(f"{host}:{port}" for host, port in told)
    eventually("containers are told of all", lambda: brokers(inside, inside="ui") == set(inside.split(",")), 20)
    eventually("this machine is told of all", lambda: brokers(outside) == set(outside.split(",")), 20)
    # Topics of one partition each: more than one broker leads some.
    topics = [f"topic-{number}" for number in range(9)]
    for topic in topics:
        kcat("-P", "-b", outside, "-t", topic, given="one\ntwo\n")
    leaders = {
        topic["partitions"][0]["leader"]
        for topic in json.loads(kcat("-L", "-J", "-b", outside))["topics"]
        if topic["topic"] in topics
    }
    assert len(leaders) == len(felix), f"only {leaders} lead"
    for topic in topics:
        read = kcat("-C", "-b", inside, "-t", topic, "-o", "beginning", "-e", "-q", inside="ui")
        assert read == "one\ntwo\n", f"{topic}: {read!r}"


def scraped(count):
    """Prometheus sees everybody, every alert and panel has what it asks for, and nothing is wrong."""
    eventually("all are scraped", lambda: len(query("up == 1")) == count, 30)
    known = set(json.loads(get("http://127.0.0.1:9090/api/v1/label/__name__/values"))["data"])
    missing = monitoring.metrics() - known - RARE - {"ALERTS"}
    assert not missing, f"nobody exports {missing}"

    def all_shown():
        shown = {}
        for title, expr in monitoring.panel_expressions():
            shown[title] = bool(query(expr)) or shown.get(title, False)
        assert all(shown.values()), f"panels without data: {[title for title in shown if not shown[title]]}"
        return True

    # A rate needs two looks.
    eventually("every panel has data", all_shown, 30)
    for alert in monitoring.alerts():
        query(alert["expr"])
    firing = query('ALERTS{alertstate="firing"}')
    assert not firing, firing


def stopped(felix):
    """A planned stop is in time; the others, Prometheus and the alerts notice; it comes back."""
    gone = felix[1]
    gone.stop()
    eventually("the others notice", lambda: query("min(felix_live_brokers)")[0]["value"][1] == str(len(felix) - 1), 40)
    eventually("its alert is raised", lambda: query('ALERTS{alertname="FelixBrokerDown"}'), 20)
    gone.start()
    eventually(f"{gone.name} is healthy again", gone.healthy, 60)
    eventually("nobody is missed", lambda: query("min(felix_live_brokers)")[0]["value"][1] == str(len(felix)), 40)
    eventually("nothing is leaderless", lambda: query("max(felix_leaderless_partitions)")[0]["value"][1] == "0", 40)


main()
