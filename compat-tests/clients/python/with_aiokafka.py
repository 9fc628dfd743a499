"""aiokafka. Its coroutines run on one event loop in a thread of its own; the cases call them from outside."""

import asyncio
import threading

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, TopicAlreadyExistsError

from client import Record, TooLarge, TopicExists, collect

ACKS = {"all": "all", "1": 1, "0": 0}


def record(found):
    return Record(found.key, found.value, list(found.headers), found.timestamp, found.partition, found.offset)


class Client:
    def __init__(self, bootstrap):
        self.bootstrap = bootstrap
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.admin = self.started(lambda: AIOKafkaAdminClient(bootstrap_servers=bootstrap))

    def wait(self, coroutine, seconds=20):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(seconds)

    def started(self, make):
        """The client's objects must be made on the loop that they live on."""

        async def start():
            made = make()
            await made.start()
            return made

        return self.wait(start())

    def version(self):
        return aiokafka.__version__

    def close(self):
        self.wait(self.admin.close())

    def create(self, topic, partitions):
        answer = self.wait(self.admin.create_topics([NewTopic(topic, partitions, 1)]))
        for _, code, *_ in answer.topic_errors:
            if code == TopicAlreadyExistsError.errno:
                raise TopicExists
            assert code == 0, f"error {code}"

    def delete(self, topic):
        self.wait(self.admin.delete_topics([topic]))

    def topics(self):
        return set(self.wait(self.admin.list_topics()))

    def partitions(self, topic):
        return len(self.wait(self.admin.describe_topics([topic]))[0]["partitions"])

    def produce(self, topic, records, codec="none", acks="all", idempotent=True, partition=0, limit=None):
        settings = {
            "compression_type": None if codec == "none" else codec,
            "acks": ACKS[acks],
            "enable_idempotence": idempotent,
            "linger_ms": 50,
        }
        if limit:
            settings |= {"max_request_size": limit, "max_batch_size": limit}
        return self.send(settings, topic, records, partition)

    def produce_with_defaults(self, topic, records):
        self.send({}, topic, records, 0)

    def send(self, settings, topic, records, partition):
        producer = self.started(lambda: AIOKafkaProducer(bootstrap_servers=self.bootstrap, **settings))

        async def send():
            futures = [
                await producer.send(
                    topic, sent.value, sent.key, partition=partition, timestamp_ms=sent.timestamp, headers=sent.headers
                )
                for sent in records
            ]
            answers = await asyncio.gather(*futures)
            return [answer.offset if answer else None for answer in answers]

        try:
            return self.wait(send())
        except MessageSizeTooLargeError as error:
            raise TooLarge from error
        finally:
            self.wait(producer.stop())

    def consumer(self, group=None, **settings):
        return self.started(
            lambda: AIOKafkaConsumer(
                bootstrap_servers=self.bootstrap, group_id=group, enable_auto_commit=False, **settings
            )
        )

    def polled(self, consumer, most):
        batches = self.wait(consumer.getmany(timeout_ms=200, max_records=most))
        return [record(found) for batch in batches.values() for found in batch]

    def read(self, topic, partition, start, count, when_placed=None):
        consumer = self.consumer()
        place = TopicPartition(topic, partition)

        async def place_consumer():
            consumer.assign([place])
            if start == "start":
                await consumer.seek_to_beginning(place)
            elif start == "end":
                await consumer.seek_to_end(place)
            else:
                consumer.seek(place, start)
            await consumer.position(place)

        try:
            self.wait(place_consumer())
            if when_placed:
                when_placed()
            return collect(lambda most: self.polled(consumer, most), count)
        finally:
            self.wait(consumer.stop())

    def asked(self, question, group=None):
        consumer = self.consumer(group)
        try:
            return self.wait(question(consumer))
        finally:
            self.wait(consumer.stop())

    def end(self, topic, partition):
        place = TopicPartition(topic, partition)
        return self.asked(lambda consumer: consumer.end_offsets([place]))[place]

    def offset_at(self, topic, partition, timestamp):
        place = TopicPartition(topic, partition)
        found = self.asked(lambda consumer: consumer.offsets_for_times({place: timestamp}))[place]
        return found.offset if found else None

    def committed(self, group, topic, partition):
        return self.asked(lambda consumer: consumer.committed(TopicPartition(topic, partition)), group)

    def member(self, group, topic):
        consumer = self.consumer(group, auto_offset_reset="earliest", session_timeout_ms=10_000)
        return Member(self, consumer, topic)


class Member:
    def __init__(self, client, consumer, topic):
        self.client, self.consumer, self.topic = client, consumer, topic

        async def subscribe():
            consumer.subscribe([topic])

        client.wait(subscribe())

    def poll(self, most):
        return self.client.polled(self.consumer, most)

    def assignment(self):
        return [place.partition for place in self.consumer.assignment()]

    def commit(self, partition, offset):
        place = TopicPartition(self.topic, partition)
        try:
            self.client.wait(self.consumer.commit({place: offset}))
            return True
        except KafkaError:
            return False

    def close(self):
        self.client.wait(self.consumer.stop())
