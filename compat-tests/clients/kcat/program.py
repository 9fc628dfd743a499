"""Runs the common cases, and some of kcat's own, with one kcat: `program.py KCAT --bootstrap ADDRESS --prefix PREFIX CASE...`."""

import argparse
import json
import os
import re
import subprocess
import sys
import time
import traceback

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))

import cases
from cases import expect, numbered, values
from client import Record
from kcat import Client, Failed, Kcat


def acks_0(client, topic):
    """kcat closes its connection as soon as all is sent, and what is on the way may then be lost with any broker: so it is kept
    until the records have arrived, twice."""
    client.create(topic, 1)
    # kcat reads its input in pieces of this size, and sends a piece when it is full.
    sent = [Record(key=None, value=b"%01023d" % n) for n in range(100)]
    command = client.command(["-P", "-t", topic, "-p", 0, "-X", "acks=0"])
    with subprocess.Popen(command, stdin=subprocess.PIPE) as kcat:
        for end in (50, 100):
            kcat.stdin.write(b"".join(record.value + b"\n" for record in sent[end - 50 : end]))
            kcat.stdin.flush()
            cases.wait_until(lambda: client.end(topic, 0) == end, f"{end} records")
    expect(kcat.returncode, 0)
    expect(values(client.read(topic, 0, "start", 100)), values(sent))


def keys(client, topic):
    client.create(topic, 6)
    sent = [Record(key=b"key %d" % (n % 20), value=b"%d" % n) for n in range(100)]
    client.produce(topic, sent, partition=None)
    read = []
    for partition in range(6):
        if count := client.end(topic, partition):
            read += client.read(topic, partition, "start", count)
    places = {(record.key, record.partition) for record in read}
    expect(len(places), len({key for key, _ in places}))
    expect(sorted((record.key, record.value) for record in read), sorted((record.key, record.value) for record in sent))
    return "6 partitions"


def read_timestamp(client, topic):
    """kcat cannot stamp records, so five are sent before a moment and five after."""
    client.create(topic, 1)
    sent = numbered(10)
    client.produce(topic, sent[:5])
    last = client.read(topic, 0, 4, 1)[0].timestamp
    cases.wait_until(lambda: time.time() * 1000 > last + 2, "the clock to move on")
    moment = last + 1
    client.produce(topic, sent[5:])
    expect(client.offset_at(topic, 0, moment), 5)
    printed, _ = client.run("-C", "-t", topic, "-p", 0, "-o", f"s@{moment}", "-c", 5, "-f", r"%s\n")
    expect(printed.splitlines(), values(sent[5:]))
    expect(client.offset_at(topic, 0, last + 3_600_000), None)


def commit_resume(client, topic):
    client.create(topic, 1)
    sent = numbered(10)
    client.produce(topic, sent)
    for half in (sent[:5], sent[5:]):
        kcat = Kcat(client, ["-c", 5, *client.member_arguments(topic + "-group", topic)])
        expect(values(kcat.end()), values(half))


def kcat_metadata(client, topic):
    client.create(topic, 6)
    printed, _ = client.run("-L", "-t", topic)
    text = printed.decode()
    expect(re.findall(r"broker (\d+) at (\S+)", text), [("1", client.bootstrap)])
    assert f'topic "{topic}" with 6 partitions:\n' in text, text
    expect(re.findall(r"partition (\d+), leader 1, replicas: 1, isrs: 1\n", text), list("012345"))
    everything = json.loads(client.run("-L", "-J")[0])
    expect(everything["brokers"], [{"id": 1, "name": client.bootstrap}])
    expect(everything["controllerid"], 1)
    found = {described["topic"]: len(described["partitions"]) for described in everything["topics"]}
    expect(found.get(topic), 6)


def kcat_query(client, topic):
    client.create(topic, 6)
    client.produce(topic, numbered(10), partition=0)
    client.produce(topic, numbered(3), partition=5)
    asked = [f"{topic}:0:-1", f"{topic}:0:-2", f"{topic}:5:-1", f"{topic}:5:0", f"{topic}:1:-1"]
    for question, answer in zip(asked, [10, 0, 3, 0, 0]):
        _, partition, _ = question.rsplit(":", 2)
        expect(client.run("-Q", "-t", question)[0].decode(), f"{topic} [{partition}] offset {answer}\n")
    several, _ = client.run("-Q", "-t", asked[0], "-t", asked[2])
    expect(sorted(several.decode().splitlines()), [f"{topic} [0] offset 10", f"{topic} [5] offset 3"])


def kcat_json(client, topic):
    client.create(topic, 1)
    client.produce(topic, [Record(key=b"k", value=b"v", headers=[("a", b"1"), ("a", b"2")]), Record(key=b"gone", value=None)])
    printed, _ = client.run("-C", "-t", topic, "-p", 0, "-e", "-J")
    first, second = map(json.loads, printed.splitlines())
    assert abs(first.pop("ts") - time.time() * 1000) < 60_000, "the time stamp is not the time"
    wanted = {"topic": topic, "partition": 0, "offset": 0, "tstype": "create", "broker": 1, "key": "k", "payload": "v"}
    expect(first, wanted | {"headers": ["a", "1", "a", "2"]})
    expect((second["key"], second["payload"], second["offset"]), ("gone", None, 1))


def kcat_last(client, topic):
    client.create(topic, 1)
    sent = numbered(10)
    client.produce(topic, sent)
    printed, _ = client.run("-C", "-t", topic, "-p", 0, "-o", -3, "-e", "-f", r"%s\n")
    expect(printed.splitlines(), values(sent[7:]))


def kcat_cooperative(client, topic, ask):
    client.group_settings = {"partition.assignment.strategy": "cooperative-sticky"}
    try:
        cases.group_of_three(client, topic, ask)
    finally:
        client.group_settings = {}


def kcat_transaction(client, topic):
    """A broker with transactions commits it; one without refuses soon and in words, instead of being asked for ever."""
    client.create(topic, 1)
    begun = time.monotonic()
    try:
        client.run("-P", "-t", topic, "-p", 0, "-X", f"transactional.id={topic}", stdin=b"in a transaction\n")
    except Failed as refusal:
        took = time.monotonic() - begun
        assert took < 10, f"the refusal took {took:.1f} s: {refusal}"
        assert "imed out" not in str(refusal), f"not a refusal: {refusal}"
        expect(client.end(topic, 0), 0)
        return f"refused: {str(refusal).splitlines()[-1]}"
    printed, _ = client.run("-C", "-t", topic, "-p", 0, "-e", "-f", "%s")
    expect(printed, b"in a transaction")
    return "committed"


OWN = {
    "acks-0": acks_0,
    "keys": keys,
    "read-timestamp": read_timestamp,
    "commit-resume": commit_resume,
    "kcat-metadata": kcat_metadata,
    "kcat-query": kcat_query,
    "kcat-json": kcat_json,
    "kcat-last": kcat_last,
    "kcat-transaction": kcat_transaction,
}


def say(**line):
    print(json.dumps(line), flush=True)


def ask(what):
    """Asks the harness to do something to the broker, and returns its answer when it is done."""
    say(ask=what)
    answer = json.loads(sys.stdin.readline())
    if not answer["ok"]:
        raise RuntimeError(f"the harness could not {what} the broker: {answer['error']}")
    return answer


def run(name, client, topic):
    if name == "kcat-cooperative":
        return kcat_cooperative(client, topic, ask)
    if name in OWN:
        return OWN[name](client, topic)
    return cases.run(name, client, topic, ask)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("program")
    arguments.add_argument("--bootstrap", required=True)
    arguments.add_argument("--prefix", required=True)
    arguments.add_argument("cases", nargs="+")
    given = arguments.parse_args()
    client = Client(given.program, given.bootstrap)
    say(version=client.version())
    for name in given.cases:
        say(begin=name)
        begun = time.monotonic()
        try:
            status, detail = "pass", run(name, client, given.prefix + name) or ""
        except Exception as error:
            traceback.print_exc()
            where = traceback.extract_tb(error.__traceback__)[-1]
            status, detail = "fail", f"{type(error).__name__}: {error} ({where.name}:{where.lineno})"
        say(case=name, status=status, detail=detail, ms=(time.monotonic() - begun) * 1000)


main()
