"""The common cases, in terms of what every Python client offers (see `client.py`)."""

import threading
import time

from client import Record, TooLarge, TopicExists, collect, wait_until


def run(name, client, topic, ask):
    kind, _, rest = name.partition("-")
    if kind == "codec":
        codec(client, topic, rest)
    elif kind == "acks":
        acks(client, topic, rest)
    elif name == "group-of-three":
        group_of_three(client, topic, ask)
    elif name == "compacted":
        compacted(client, ask)
    else:
        globals()[name.replace("-", "_")](client, topic)


def numbered(count, value=b"value"):
    return [Record(key=b"key", value=b"%s %d" % (value, n)) for n in range(count)]


def values(records):
    return [record.value for record in records]


def expect(found, wanted):
    assert found == wanted, f"found {found!r:.300}, wanted {wanted!r:.300}"


def codec(client, topic, codec):
    client.create(topic, 1)
    sent = numbered(10, b"compressible " * 20)
    expect(client.produce(topic, sent, codec=codec), list(range(10)))
    read = client.read(topic, 0, "start", 10)
    expect(values(read), values(sent))
    expect([record.offset for record in read], list(range(10)))


def acks(client, topic, acks):
    client.create(topic, 1)
    sent = numbered(100)
    offsets = client.produce(topic, sent, acks=acks, idempotent=False)
    if acks != "0":
        expect(offsets, list(range(100)))
    expect(values(client.read(topic, 0, "start", 100)), values(sent))


def default_settings(client, topic):
    client.create(topic, 1)
    sent = numbered(100)
    client.produce_with_defaults(topic, sent)
    expect(values(client.read(topic, 0, "start", 100)), values(sent))


def idempotent(client, topic):
    client.create(topic, 1)
    sent = numbered(1000)
    expect(client.produce(topic, sent, idempotent=True), list(range(1000)))
    expect(values(client.read(topic, 0, "start", 1000)), values(sent))
    expect(client.end(topic, 0), 1000)


def keys(client, topic):
    client.create(topic, 3)
    sent = [Record(key=b"key %d" % (n % 20), value=b"%d" % n) for n in range(100)]
    client.produce(topic, sent, partition=None)
    places, read = {}, []
    for partition in range(3):
        count = client.end(topic, partition)
        for record in client.read(topic, partition, "start", count) if count else []:
            assert places.setdefault(record.key, partition) == partition, f"{record.key} is on two partitions"
            read.append((record.key, record.value))
    expect(sorted(read), sorted((record.key, record.value) for record in sent))


def headers_duplicate(client, topic):
    client.create(topic, 1)
    headers = [("a", b"1"), ("b", b"2"), ("a", b"3"), ("empty", b"")]
    client.produce(topic, [Record(key=b"k", value=b"v", headers=headers)])
    expect(client.read(topic, 0, "start", 1)[0].headers, headers)


def null_and_empty(client, topic):
    client.create(topic, 1)
    sent = [
        Record(key=None, value=b"null key"),
        Record(key=b"", value=b"empty key"),
        Record(key=b"null value", value=None),
        Record(key=b"empty value", value=b""),
    ]
    client.produce(topic, sent)
    read = client.read(topic, 0, "start", 4)
    expect([(record.key, record.value) for record in read], [(record.key, record.value) for record in sent])


def record_1mb(client, topic):
    client.create(topic, 1)
    large = bytes(range(250)) * 4000
    client.produce(topic, [Record(key=None, value=large)], limit=1_040_000)
    assert client.read(topic, 0, "start", 1)[0].value == large, "the record came back changed"
    try:
        client.produce(topic, [Record(key=None, value=large * 2)], limit=10_000_000)
    except TooLarge:
        expect(client.end(topic, 0), 1)
    else:
        raise AssertionError("a record of 2,000,000 bytes was taken")


def read_start(client, topic):
    client.create(topic, 1)
    sent = numbered(10)
    client.produce(topic, sent)
    expect(values(client.read(topic, 0, "start", 10)), values(sent))


def read_end(client, topic):
    client.create(topic, 1)
    client.produce(topic, numbered(10))
    later = numbered(3, b"later")
    read = client.read(topic, 0, "end", 3, when_placed=lambda: client.produce(topic, later))
    expect(values(read), values(later))


def read_offset(client, topic):
    client.create(topic, 1)
    sent = numbered(10)
    client.produce(topic, sent)
    expect(values(client.read(topic, 0, 5, 5)), values(sent[5:]))


def read_timestamp(client, topic):
    client.create(topic, 1)
    first = int(time.time() * 1000) - 60_000
    sent = [Record(key=None, value=b"%d" % n, timestamp=first + 1000 * n) for n in range(10)]
    client.produce(topic, sent)
    found = client.offset_at(topic, 0, first + 4500)
    expect(found, 5)
    expect(values(client.read(topic, 0, found, 5)), values(sent[5:]))
    expect(client.offset_at(topic, 0, first + 3_600_000), None)


def commit_resume(client, topic):
    client.create(topic, 1)
    sent = numbered(10)
    client.produce(topic, sent)
    for half in (sent[:5], sent[5:]):
        member = client.member(topic + "-group", topic)
        read = collect(member.poll, 5)
        expect(values(read), values(half))
        member.commit(0, read[-1].offset + 1)
        member.close()


def compacted(client, ask):
    """The harness writes the topic, and says what must be left of it."""
    made = ask("compacted")
    left = [survivor.split(" ") for survivor in made["survivors"].split(";")]
    wanted = [(int(offset), key.encode(), None if value == "-" else value.encode()) for offset, key, value in left]
    read = client.read(made["topic"], 0, "start", len(wanted))
    expect([(record.offset, record.key, record.value) for record in read], wanted)
    expect(client.end(made["topic"], 0), wanted[-1][0] + 1)


def topic_admin(client, topic):
    client.create(topic, 3)
    expect(client.partitions(topic), 3)
    try:
        client.create(topic, 3)
    except TopicExists:
        pass
    else:
        raise AssertionError("the topic was created twice")
    client.delete(topic)
    wait_until(lambda: topic not in client.topics(), "the topic to be gone")


def auto_create(client, topic):
    begun = time.monotonic()
    client.produce(topic, [Record(key=None, value=b"first")])
    expect(values(client.read(topic, 0, "start", 1)), [b"first"])
    took = time.monotonic() - begun
    assert took < 5, f"took {took:.1f} s"


class Member(threading.Thread):
    """A member of a group on its own thread: notes what it reads and commits after each poll."""

    def __init__(self, client, group, topic):
        super().__init__(daemon=True)
        self.member = client.member(group, topic)
        self.read = []
        self.commits = []
        self.assigned = frozenset()
        self.leaving = threading.Event()
        self.error = None
        self.start()

    def run(self):
        try:
            while not self.leaving.is_set():
                records = self.member.poll(100)
                self.assigned = frozenset(self.member.assignment())
                self.read.extend(records)
                ends = {}
                for record in records:
                    ends[record.partition] = record.offset + 1
                for partition, end in ends.items():
                    if self.member.commit(partition, end):
                        self.commits.append((time.monotonic(), partition, end))
            self.member.close()
        except Exception as error:
            self.error = error

    def leave(self):
        self.leaving.set()
        self.join(30)
        assert not self.is_alive(), "the member did not leave"


def group_of_three(client, topic, ask):
    client.create(topic, 6)
    group = topic + "-group"
    sent = []

    def send(text):
        for partition in range(6):
            records = [Record(key=None, value=b"%s %d %d" % (text, partition, n)) for n in range(10)]
            client.produce(topic, records, partition=partition)
            sent.extend(values(records))

    def shared(members):
        parts = [member.assigned for member in members]
        for member in everyone:
            assert member.error is None, f"a member failed: {member.error!r}"
        return all(parts) and sum(map(len, parts)) == 6 and len(frozenset().union(*parts)) == 6

    def settled(members, what):
        try:
            wait_until(lambda: shared(members), what, 40)
        except TimeoutError as error:
            held = [sorted(member.assigned) for member in members]
            raise TimeoutError(f"{error}, who hold {held}") from None

    def all_read():
        read = {record.value for member in everyone for record in member.read}
        return read >= set(sent)

    send(b"before")
    everyone = [Member(client, group, topic), Member(client, group, topic)]
    first, second = everyone
    settled([first, second], "two members to share the partitions")
    third = Member(client, group, topic)
    everyone.append(third)
    settled(everyone, "the third member to get its part")
    ask("restart")
    send(b"restarted")
    wait_until(all_read, "all records after the restart", 40)
    settled(everyone, "the members to be together again")
    second.leave()
    settled([first, third], "the others to take over")
    send(b"left")
    wait_until(all_read, "all records after the leave", 40)
    first.leave()
    third.leave()
    commits = sorted(commit for member in everyone for commit in member.commits)
    last = {}
    for _, partition, end in commits:
        assert end >= last.get(partition, 0), f"the committed offset of {partition} went back to {end}"
        last[partition] = end
    for partition in range(6):
        expect(client.committed(group, topic, partition), client.end(topic, partition))
