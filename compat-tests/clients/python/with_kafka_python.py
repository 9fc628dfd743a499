"""kafka-python."""

import kafka
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import KafkaError, MessageSizeTooLargeError, TopicAlreadyExistsError
from kafka.structs import OffsetAndMetadata

from client import Record, TooLarge, TopicExists, collect

ACKS = {"all": "all", "1": 1, "0": 0}


def record(found):
    return Record(found.key, found.value, list(found.headers), found.timestamp, found.partition, found.offset)


def polled(consumer, most):
    batches = consumer.poll(timeout_ms=200, max_records=most)
    return [record(found) for batch in batches.values() for found in batch]


class Client:
    def __init__(self, bootstrap):
        self.bootstrap = bootstrap
        self.admin = KafkaAdminClient(bootstrap_servers=bootstrap)

    def version(self):
        return kafka.__version__

    def close(self):
        self.admin.close()

    def create(self, topic, partitions):
        try:
            self.admin.create_topics([NewTopic(topic, partitions, 1)])
        except TopicAlreadyExistsError as error:
            raise TopicExists from error

    def delete(self, topic):
        self.admin.delete_topics([topic])

    def topics(self):
        return set(self.admin.list_topics())

    def partitions(self, topic):
        return len(self.admin.describe_topics([topic])[0]["partitions"])

    def produce(self, topic, records, codec="none", acks="all", idempotent=True, partition=0, limit=None):
        settings = {
            "compression_type": None if codec == "none" else codec,
            "acks": ACKS[acks],
            "enable_idempotence": idempotent,
            "linger_ms": 50,
        }
        if limit:
            settings |= {"max_request_size": limit}
        return self.send(settings, topic, records, partition)

    def produce_with_defaults(self, topic, records):
        self.send({}, topic, records, 0)

    def send(self, settings, topic, records, partition):
        producer = KafkaProducer(bootstrap_servers=self.bootstrap, **settings)
        try:
            futures = [
                producer.send(topic, sent.value, sent.key, sent.headers, partition, sent.timestamp) for sent in records
            ]
            producer.flush(15)
            return [future.get(15).offset for future in futures]
        except MessageSizeTooLargeError as error:
            raise TooLarge from error
        finally:
            producer.close()

    def consumer(self, group=None, **settings):
        return KafkaConsumer(bootstrap_servers=self.bootstrap, group_id=group, enable_auto_commit=False, **settings)

    def read(self, topic, partition, start, count, when_placed=None):
        consumer = self.consumer()
        place = TopicPartition(topic, partition)
        try:
            consumer.assign([place])
            if start == "start":
                consumer.seek_to_beginning(place)
            elif start == "end":
                consumer.seek_to_end(place)
            else:
                consumer.seek(place, start)
            if when_placed:
                consumer.position(place)
                when_placed()
            return collect(lambda most: polled(consumer, most), count)
        finally:
            consumer.close()

    def asked(self, question, group=None):
        consumer = self.consumer(group)
        try:
            return question(consumer)
        finally:
            consumer.close()

    def end(self, topic, partition):
        place = TopicPartition(topic, partition)
        return self.asked(lambda consumer: consumer.end_offsets([place])[place])

    def offset_at(self, topic, partition, timestamp):
        place = TopicPartition(topic, partition)
        found = self.asked(lambda consumer: consumer.offsets_for_times({place: timestamp})[place])
        return found.offset if found else None

    def committed(self, group, topic, partition):
        return self.asked(lambda consumer: consumer.committed(TopicPartition(topic, partition)), group)

    def member(self, group, topic):
        return Member(self.consumer(group, auto_offset_reset="earliest", session_timeout_ms=10_000), topic)


class Member:
    def __init__(self, consumer, topic):
        self.consumer, self.topic = consumer, topic
        consumer.subscribe([topic])
        # Waits for the topic's metadata. A member that joins without it shares out nothing and joins again as soon as
        # it has it, and kafka-python 3.0.12 forgets that second join if a poll ends before its answer is there: the
        # next poll sees an assignment made from the newest metadata, takes it for done, and neither sends heartbeats
        # nor reads from then on. Such silent members were seen against Apache Kafka 4.4.0, too.
        assert consumer.partitions_for_topic(topic), f"{topic} has no partitions"

    def poll(self, most):
        return polled(self.consumer, most)

    def assignment(self):
        return [place.partition for place in self.consumer.assignment()]

    def commit(self, partition, offset):
        place = TopicPartition(self.topic, partition)
        try:
            self.consumer.commit({place: OffsetAndMetadata(offset, "", -1)})
            return True
        except KafkaError:
            return False

    def close(self):
        self.consumer.close()
