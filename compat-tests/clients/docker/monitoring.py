"""The case `monitoring`: Prometheus' and Grafana's files, judged by Prometheus' own tool, and against the pages."""

import json
import os
import pathlib
import re
import shutil
import tempfile

import yaml

from files import DOCKER, PROJECT, compose, is_etcd, is_felix, run

HERE = pathlib.Path(__file__).parent
# What Prometheus itself makes.
OWN = {"up", "ALERTS"}
WORDS = {"and", "or", "unless", "offset", "bool", "group_left", "group_right", "inf", "nan"}


def check():
    promtool = pathlib.Path(os.environ["OUT"]) / "promtool"
    judged(promtool, "check", "config", DOCKER / "prometheus.yml")
    targets()
    dashboard()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        rules = [{"record": f"panel:{number}", "expr": expr} for number, (_, expr) in enumerate(panel_expressions())]
        (folder / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
        judged(promtool, "check", "rules", folder / "panels.yml")
        shutil.copy(DOCKER / "alerts.yml", folder)
        shutil.copy(HERE / "alerts.test.yml", folder)
        judged(promtool, "test", "rules", folder / "alerts.test.yml")
    tried = {test["name"] for test in yaml.safe_load((HERE / "alerts.test.yml").read_text())["tests"]}
    names = {alert["alert"] for alert in alerts()}
    assert tried == names, f"without a try: {names - tried}; without an alert: {tried - names}"
    explained(names)
    linked()
    for name in metrics():
        if not name.startswith("etcd_"):
            assert name in documented() | OWN, f"docs/metrics.md has no {name}"


def judged(*command):
    code, said = run(*command)
    assert code == 0, said


def alerts():
    groups = yaml.safe_load((DOCKER / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def explained(names):
    """Each alert has its section, each section its alert, and the alert says where."""
    page = (PROJECT / "docs" / "operations.md").read_text()
    sections = set(re.findall(r"^### ((?:Felix|Etcd)\w+)$", page, re.MULTILINE))
    assert sections == names, f"not explained: {names - sections}; no alert: {sections - names}"
    for alert in alerts():
        runbook = f"docs/operations.md#{alert['alert'].lower()}"
        assert alert["annotations"]["runbook"] == runbook, alert
        assert alert["labels"]["severity"] in {"critical", "warning"} and alert["annotations"]["summary"], alert


def linked():
    """What the operator's page points to is there."""
    page = (PROJECT / "docs" / "operations.md").read_text()
    anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in re.findall(r"^#+ (.*)$", page, re.MULTILINE)}
    for link in re.findall(r"\]\(#([^)]+)\)", page):
        assert link in anchors, f"docs/operations.md points to #{link}, which is not there"


def dashboard_file():
    return json.loads((DOCKER / "grafana" / "dashboards" / "felix.json").read_text())


def panels():
    """The panels that show something."""
    return [panel for panel in dashboard_file()["panels"] if panel["type"] != "row"]


def panel_expressions():
    """(panel's title, expression), with Grafana's own variables as it would fill them in."""
    for panel in panels():
        for target in panel["targets"]:
            expr = target["expr"].replace("$__rate_interval", "20s").replace("$instance", ".*")
            assert "$" not in expr, f"{panel['title']}: {expr}"
            yield panel["title"], expr


def dashboard():
    """The dashboard finds its data, and Grafana finds the dashboard."""
    found = dashboard_file()
    sources = yaml.safe_load((DOCKER / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    uids = {source["uid"] for source in sources}
    ids = [panel["id"] for panel in found["panels"]]
    assert len(set(ids)) == len(ids), "two panels have one id"
    for panel in panels():
        assert panel["datasource"]["uid"] in uids, panel["title"]
        assert panel["description"].strip(), f"{panel['title']} answers no question"
        assert panel["targets"], panel["title"]
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, f"{panel['title']} is out of sight"
    service = compose("compose.cluster.yaml")["services"]["grafana"]
    mounted = [volume.split(":")[1] for volume in service["volumes"]]
    (provider,) = yaml.safe_load((DOCKER / "grafana/provisioning/dashboards/felix.yaml").read_text())["providers"]
    assert provider["options"]["path"] in mounted, provider
    home = service["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/felix.json", home
    assert [source["url"] for source in sources] == ["http://prometheus:9090"], sources


def targets():
    """Prometheus asks every broker and every member of etcd."""
    services = compose("compose.cluster.yaml")["services"]
    configured = yaml.safe_load((DOCKER / "prometheus.yml").read_text())["scrape_configs"]
    asked = {job["job_name"]: job["static_configs"][0]["targets"] for job in configured}
    assert asked["felix"] == [f"{name}:9644" for name, one in services.items() if is_felix(one)], asked
    assert asked["etcd"] == [f"{name}:2379" for name, one in services.items() if is_etcd(one)], asked


def documented():
    """The series of docs/metrics.md; a histogram is three."""
    page = (PROJECT / "docs" / "metrics.md").read_text()
    found = set()
    for name, kind in re.findall(r"^\| `(\w+)` \| (\w+) \|", page, re.MULTILINE):
        found |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"} if kind == "histogram" else {name}
    return found


def metrics():
    """Every series that an alert or a panel asks for."""
    found = set()
    for expr in [alert["expr"] for alert in alerts()] + [expr for _, expr in panel_expressions()]:
        bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]', " ", expr)
        bare = re.sub(r"\b(by|without|on|ignoring)\s*\([^)]*\)", " ", bare)
        found |= set(re.findall(r"\b([a-zA-Z_:][\w:]*)\b(?!\s*\()", bare)) - WORDS
    return found
