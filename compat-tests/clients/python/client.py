"""What the cases need of a client. Each `with_<name>.py` has a `Client` with these methods:

- `version()`, `close()`
- `create(topic, partitions)` (raises TopicExists), `delete(topic)`, `topics()`, `partitions(topic)` → count
- `produce(topic, records, codec="none", acks="all", idempotent=True, partition=0, limit=None)` → offsets; in one
  batch where the client allows; `limit` raises the client's own size limit; raises TooLarge
- `produce_with_defaults(topic, records)`
- `read(topic, partition, start, count, when_placed=None)` → records; start is "start", "end" or an offset;
  `when_placed` is called when the consumer stands at its start
- `end(topic, partition)`, `offset_at(topic, partition, timestamp)` → offset or None, `committed(group, topic, partition)`
- `member(group, topic)` → an object with `poll(most)` → records, `assignment()` → partition numbers,
  `commit(partition, offset)` → whether it was taken (False while the group rebalances), `close()`
"""

import dataclasses
import time


class TooLarge(Exception):
    """The broker refused a record as too large."""


class TopicExists(Exception):
    """The topic is there already."""


@dataclasses.dataclass
class Record:
    key: bytes | None
    value: bytes | None
    headers: list = dataclasses.field(default_factory=list)
    timestamp: int | None = None
    partition: int = 0
    offset: int = -1


def wait_until(condition, what, seconds=15):
    """Tries until the condition holds; the condition itself blocks a little or is cheap."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds} s for {what}")
        time.sleep(0.02)


def collect(poll, count, seconds=15):
    """Polls until `count` records are there."""
    records = []

    def enough():
        records.extend(poll(count - len(records)))
        return len(records) >= count

    try:
        wait_until(enough, f"{count} records", seconds)
    except TimeoutError as error:
        raise TimeoutError(f"{error}, got {len(records)}") from None
    return records
