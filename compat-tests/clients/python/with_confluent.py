"""confluent-kafka: librdkafka's Python binding."""


import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from client import Record, TooLarge, TopicExists, collect

PLACES = {"start": confluent_kafka.OFFSET_BEGINNING, "end": confluent_kafka.OFFSET_END}


def record(message):
    if message.error():
        raise KafkaException(message.error())
    headers = message.headers() or []
    return Record(message.key(), message.value(), headers, message.timestamp()[1], message.partition(), message.offset())


class Client:
    def __init__(self, bootstrap):
        self.address = {"bootstrap.servers": bootstrap}
        self.admin = AdminClient(self.address)

    def version(self):
        return f"{confluent_kafka.__version__}, librdkafka {confluent_kafka.libversion()[0]}"

    def close(self):
        pass

    def create(self, topic, partitions):
        try:
            self.admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(15)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                raise TopicExists from error
            raise

    def delete(self, topic):
        self.admin.delete_topics([topic])[topic].result(15)

    def topics(self):
        return set(self.admin.list_topics(timeout=10).topics)

    def partitions(self, topic):
        return len(self.admin.list_topics(topic, timeout=10).topics[topic].partitions)

    def produce(self, topic, records, codec="none", acks="all", idempotent=True, partition=0, limit=None):
        settings = {"compression.type": codec, "acks": acks, "enable.idempotence": idempotent, "linger.ms": 50}
        if limit:
            settings["message.max.bytes"] = limit
        return self.send(settings, topic, records, partition)

    def produce_with_defaults(self, topic, records):
        self.send({}, topic, records, 0)

    def send(self, settings, topic, records, partition):
        producer = Producer(self.address | settings)
        offsets, failures = [], []

        def delivered(error, message):
            failures.append(error) if error else offsets.append(message.offset())

        for sent in records:
            place = {} if partition is None else {"partition": partition}
            if sent.timestamp is not None:
                place["timestamp"] = sent.timestamp
            producer.produce(topic, sent.value, sent.key, headers=sent.headers, on_delivery=delivered, **place)
        left = producer.flush(15)
        assert left == 0, f"{left} records were not acknowledged"
        if failures:
            if failures[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
                raise TooLarge
            raise KafkaException(failures[0])
        return offsets

    def consumer(self, group, **settings):
        settings = {key.replace("_", "."): value for key, value in settings.items()}
        return Consumer(self.address | {"group.id": group, "enable.auto.commit": False} | settings)

    def read(self, topic, partition, start, count, when_placed=None):
        consumer = self.consumer("unused", enable_partition_eof=True)
        try:
            consumer.assign([TopicPartition(topic, partition, PLACES.get(start, start))])
            if when_placed:
                # The end-of-partition event says that the consumer stands at its start.
                message = consumer.poll(15)
                assert message and message.error().code() == KafkaError._PARTITION_EOF, f"not at the end: {message}"
                when_placed()

            def poll(most):
                messages = consumer.consume(most, 0.2)
                return [record(m) for m in messages if not m.error() or m.error().code() != KafkaError._PARTITION_EOF]

            return collect(poll, count)
        finally:
            consumer.close()

    def asked(self, question):
        consumer = self.consumer("unused")
        try:
            return question(consumer)
        finally:
            consumer.close()

    def end(self, topic, partition):
        place = TopicPartition(topic, partition)
        return self.asked(lambda consumer: consumer.get_watermark_offsets(place, timeout=10)[1])

    def offset_at(self, topic, partition, timestamp):
        place = TopicPartition(topic, partition, timestamp)
        found = self.asked(lambda consumer: consumer.offsets_for_times([place], timeout=10))[0].offset
        return found if found >= 0 else None

    def committed(self, group, topic, partition):
        consumer = self.consumer(group)
        try:
            return consumer.committed([TopicPartition(topic, partition)], timeout=10)[0].offset
        finally:
            consumer.close()

    def member(self, group, topic):
        return Member(self.consumer(group, auto_offset_reset="earliest", session_timeout_ms=10_000), topic)


class Member:
    def __init__(self, consumer, topic):
        self.consumer, self.topic = consumer, topic
        consumer.subscribe([topic])

    def poll(self, most):
        messages = self.consumer.consume(most, 0.2)
        # While the broker restarts there are connection errors to read past.
        return [record(message) for message in messages if not message.error()]

    def assignment(self):
        return [place.partition for place in self.consumer.assignment()]

    def commit(self, partition, offset):
        try:
            self.consumer.commit(offsets=[TopicPartition(self.topic, partition, offset)], asynchronous=False)
            return True
        except KafkaException:
            return False

    def close(self):
        self.consumer.close()
