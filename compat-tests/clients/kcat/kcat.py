"""kcat as a client of the common cases (see the Python clients' `client.py`): a process for each thing it is asked to do."""

import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading

from client import Record, TooLarge, wait_until

# What kcat prints of a record: numbers and headers on a line, then key and value, of known lengths, and a line end.
FORMAT = r"%p %o %T %K %S %h\n%k%s\n"
PLACES = {"start": "beginning", "end": "end"}
# Enough for any one run of kcat; a case's own bound is the harness's business.
SECONDS = 20


class Failed(Exception):
    """kcat ended with an error; the text is its stderr."""


def parse(stream):
    """The next record of a stream in FORMAT, or None at its end."""
    line = stream.readline()
    if not line:
        return None
    partition, offset, timestamp, key_length, value_length, headers = line.rstrip(b"\n").split(b" ", 5)

    def field(length):
        return None if int(length) < 0 else stream.read(int(length))

    key, value = field(key_length), field(value_length)
    assert stream.read(1) == b"\n", "a record longer or shorter than it says"
    pairs = [pair.split(b"=", 1) for pair in headers.split(b",")] if headers else []
    headers = [(name.decode(), value) for name, value in pairs]
    return Record(key, value, headers, int(timestamp), int(partition), int(offset))


class Kcat(subprocess.Popen):
    """A kcat that runs: its records, and the lines of its stderr, as they come."""

    def __init__(self, client, arguments):
        command = client.command(arguments)
        super().__init__(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.records = queue.SimpleQueue()
        self.lines = []
        self.on_line = lambda line: None
        self.readers = [threading.Thread(target=read, daemon=True) for read in (self.read_records, self.read_lines)]
        for reader in self.readers:
            reader.start()

    def read_records(self):
        while record := parse(self.stdout):
            self.records.put(record)

    def read_lines(self):
        for line in self.stderr:
            text = line.decode(errors="replace").rstrip()
            self.lines.append(text)
            self.on_line(text)

    def take(self, most, seconds):
        """Records that are there, after waiting at most that long for the first."""
        records = []
        try:
            records.append(self.records.get(timeout=seconds))
            while len(records) < most:
                records.append(self.records.get_nowait())
        except queue.Empty:
            pass
        return records

    def end(self):
        """Waits for its end, and answers what was not taken yet."""
        try:
            code = self.wait(SECONDS)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"kcat did not end, stderr: {self.lines}") from None
        finally:
            self.kill()
        for reader in self.readers:
            reader.join()
        if code != 0:
            raise Failed("; ".join(self.lines))
        return self.take(self.records.qsize(), 0)


class Client:
    def __init__(self, program, bootstrap):
        self.program, self.bootstrap = program, bootstrap
        # What every member of a group is told beyond the usual.
        self.group_settings = {}
        self.resumed = {}

    def version(self):
        found = re.search(rb"Version ([\d.]+).*(librdkafka [\d.]+)", subprocess.check_output([self.program, "-V"]))
        return b", ".join(found.groups()).decode()

    def close(self):
        pass

    def command(self, arguments):
        return [self.program, "-b", self.bootstrap, *map(str, arguments)]

    def run(self, *arguments, stdin=b""):
        """A run of kcat to its end: what it printed, and its stderr."""
        done = subprocess.run(self.command(arguments), input=stdin, capture_output=True, timeout=SECONDS, check=False)
        stderr = done.stderr.decode(errors="replace")
        print(stderr, end="", file=sys.stderr)
        if done.returncode != 0 and "Delivery failed for message" not in stderr:
            raise Failed(stderr.strip())
        return done.stdout, stderr

    def create(self, topic, partitions):
        """Has the broker create the topic by asking for it: kcat itself cannot. There are `num.partitions` partitions."""
        wait_until(lambda: self.partitions(topic) >= partitions, f"a topic of {partitions} partitions", SECONDS)
        # A topic is seen a moment before its leaders lead.
        wait_until(lambda: self.leads(topic, partitions), "the leaders", SECONDS)

    def leads(self, topic, partitions):
        questions = [word for partition in range(partitions) for word in ("-t", f"{topic}:{partition}:-1")]
        try:
            self.run("-Q", *questions)
        except Failed:
            return False
        return True

    def partitions(self, topic):
        printed, _ = self.run("-L", "-t", topic)
        found = re.search(rb'topic "%s" with (\d+) partitions:(.*)' % re.escape(topic.encode()), printed)
        return 0 if found.group(2) else int(found.group(1))

    def produce(self, topic, records, codec="none", acks="all", idempotent=True, partition=0, limit=None):
        settings = {"acks": acks, "enable.idempotence": str(idempotent).lower(), "linger.ms": 50}
        if limit:
            settings["message.max.bytes"] = limit
        return self.send(["-z", codec] + options(settings), topic, records, partition)

    def produce_with_defaults(self, topic, records):
        self.send([], topic, records, 0)

    def send(self, arguments, topic, records, partition):
        offsets = []
        for alike in runs(records):
            offsets += self.send_alike(arguments, topic, alike, partition)
        return offsets

    def send_alike(self, arguments, topic, records, partition):
        """Sends records that one kcat can send: with keys or without, values empty or not, headers of one kind."""
        first = records[0]
        arguments = ["-P", "-t", topic, "-vvv", *arguments]
        if partition is not None:
            arguments += ["-p", partition]
        for name, value in first.headers:
            arguments += ["-H", f"{name}={value.decode()}"]
        if first.value is None:
            arguments.append("-Z")
        if first.key is not None:
            arguments += ["-K", r"\t"]
            stdin = b"".join(b"%s\t%s\n" % (record.key, record.value or b"") for record in records)
            _, said = self.run(*arguments, stdin=stdin)
        elif len(records) > 1:
            _, said = self.run(*arguments, stdin=b"".join(record.value + b"\n" for record in records))
        else:
            with tempfile.NamedTemporaryFile() as file:
                file.write(first.value)
                file.flush()
                _, said = self.run(*arguments, file.name)
        return self.delivered(said, len(records))

    def delivered(self, said, count):
        """The offsets of delivery reports."""
        failures = re.findall(r"Delivery failed for message: (.*)", said)
        if failures:
            if failures[0] == "Broker: Message size too large":
                raise TooLarge
            raise Failed(failures[0])
        offsets = [int(offset) for offset in re.findall(r"Message delivered to partition \d+ \(offset (-?\d+)\)", said)]
        assert len(offsets) == count, f"{len(offsets)} of {count} records were acknowledged"
        return offsets

    def read(self, topic, partition, start, count, when_placed=None):
        kcat = Kcat(self, ["-C", "-t", topic, "-p", partition, "-o", PLACES.get(start, start), "-c", count, "-f", FORMAT])
        if when_placed:
            placed = threading.Event()
            kcat.on_line = lambda line: placed.set() if "Reached end of topic" in line else None
            # It may have been said before anyone listened.
            if any("Reached end of topic" in line for line in list(kcat.lines)) or placed.wait(SECONDS):
                when_placed()
        return kcat.end()

    def query(self, topic, partition, timestamp):
        printed, _ = self.run("-Q", "-t", f"{topic}:{partition}:{timestamp}")
        return int(re.fullmatch(rb"\S+ \[%d\] offset (-?\d+)\s*" % partition, printed).group(1))

    def end(self, topic, partition):
        return self.query(topic, partition, -1)

    def offset_at(self, topic, partition, timestamp):
        """None when there is no such record: kcat then prints the end of the partition, as a negative number."""
        found = self.query(topic, partition, timestamp)
        return found if found >= 0 else None

    def committed(self, group, topic, partition):
        """Where a new member starts reading; kcat has no other way to see a commit. The group is asked once."""
        if group not in self.resumed:
            left = Kcat(self, self.member_arguments(group, topic) + ["-e"]).end()
            self.resumed[group] = {}
            for record in left:
                self.resumed[group].setdefault(record.partition, record.offset)
        return self.resumed[group].get(partition, self.end(topic, partition))

    def member_arguments(self, group, topic):
        settings = {
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 100,
            "heartbeat.interval.ms": 500,
            "reconnect.backoff.max.ms": 1000,
        }
        # -u: print at once. -E: go on while the broker is away.
        return ["-u", "-E", "-f", FORMAT, *options(settings | self.group_settings), "-G", group, topic]

    def member(self, group, topic):
        return Member(self, group, topic)


class Member:
    """A kcat in a group. It commits by itself, shortly after it has printed a record and when it leaves."""

    def __init__(self, client, group, topic):
        self.partitions = set()
        self.kcat = Kcat(client, ["-X", "client.id=member", *client.member_arguments(group, topic)])
        self.seen = 0

    def poll(self, most):
        records = self.kcat.take(most, 0.1)
        if not records and self.kcat.poll() is not None:
            raise Failed("; ".join(self.kcat.lines))
        return records

    def assignment(self):
        lines = self.kcat.lines
        while self.seen < len(lines):
            line = lines[self.seen]
            self.seen += 1
            # The line is "Group G rebalanced (memberid M): assigned: T [0], T [1]", or with "incremental assignment".
            named = {int(partition) for partition in re.findall(r"\S+ \[(\d+)\]", line)}
            if "rebalanced: incremental assignment" in line:
                self.partitions |= named
            elif "rebalanced: incremental revoke" in line or "): revoked: " in line:
                self.partitions -= named
            elif "): assigned: " in line:
                self.partitions = named
        return self.partitions

    def commit(self, partition, offset):
        return False

    def close(self):
        self.kcat.send_signal(signal.SIGTERM)
        self.kcat.end()


def options(settings):
    return [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]


def runs(records):
    """Cuts records into stretches that one kcat can send."""
    alike = []
    for record in records:
        kind = (record.key is None, record.value is None, record.headers)
        if alike and kind != last:
            yield alike
            alike = []
        alike.append(record)
        last = kind
    if alike:
        yield alike
