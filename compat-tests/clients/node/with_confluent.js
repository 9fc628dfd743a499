// @confluentinc/kafka-javascript: topics, offsets, sending and groups by its promise interface, reading at a place by its other one.
'use strict';

const { promisify } = require('node:util');

const { CODES, KafkaConsumer, KafkaJS, librdkafkaVersion } = require('@confluentinc/kafka-javascript');

const { Progress, TooLarge, headersToObject, waitUntil } = require('./client');

const ACKS = { 0: 0, 1: 1, all: -1 };
const PLACES = { start: -2, end: -1 };

class Client {
  // Headers are an object in the promise interface.
  headersByName = true;
  // An empty key or value is sent as null.
  emptyIsNull = true;

  constructor(bootstrap) {
    this.bootstrap = bootstrap;
    this.kafka = new KafkaJS.Kafka({ kafkaJS: { brokers: [bootstrap], logLevel: KafkaJS.logLevel.WARN } });
    this.admin = this.kafka.admin();
  }

  version() {
    return `${require('@confluentinc/kafka-javascript/package.json').version}, librdkafka ${librdkafkaVersion}`;
  }

  open() {
    return this.admin.connect();
  }

  create(topic, partitions) {
    return this.admin.createTopics({ topics: [{ topic, numPartitions: partitions, replicationFactor: 1 }] });
  }

  delete(topic) {
    return this.admin.deleteTopics({ topics: [topic] });
  }

  async partitions(topic) {
    try {
      const [found] = await this.admin.fetchTopicMetadata({ topics: [topic] });
      return (await this.admin.listTopics()).includes(topic) ? found.partitions.length : null;
    } catch (error) {
      if (error.code === CODES.ERRORS.ERR_UNKNOWN_TOPIC_OR_PART) {
        return null;
      }
      throw error;
    }
  }

  async produce(topic, records, { codec = 'none', acks = 'all', idempotent = false, partition = 0, limit, defaults = false }) {
    const how = {
      kafkaJS: { acks: ACKS[acks], compression: codec, idempotent },
      'linger.ms': 50,
      ...(limit && { 'message.max.bytes': limit }),
    };
    const producer = this.kafka.producer(defaults ? {} : how);
    await producer.connect();
    const messages = records.map(({ key, value, headers, timestamp }) => ({
      key,
      value,
      headers: headersToObject(headers),
      ...(timestamp !== undefined && { timestamp }),
      ...(partition !== null && { partition }),
    }));
    try {
      const [answer] = await producer.send({ topic, messages });
      return acks === '0' ? [] : records.map((_, n) => Number(answer.baseOffset) + n);
    } catch (error) {
      throw error.code === CODES.ERRORS.ERR_MSG_SIZE_TOO_LARGE ? new TooLarge() : error;
    } finally {
      await producer.disconnect();
    }
  }

  async read(topic, partition, start, count, placed) {
    const settings = {
      'bootstrap.servers': this.bootstrap,
      'group.id': 'unused',
      'enable.auto.commit': false,
      'enable.partition.eof': true,
    };
    const consumer = new KafkaConsumer(settings, {});
    const records = [];
    let atEnd = false;
    consumer.on('partition.eof', () => (atEnd = true));
    // Asked for piece by piece: a consumer that flows by itself never comes back from its disconnect.
    const some = promisify(consumer.consume.bind(consumer));
    await promisify(consumer.connect.bind(consumer))({});
    try {
      consumer.setDefaultConsumeTimeout(200);
      consumer.assign([{ topic, partition, offset: PLACES[start] ?? start }]);
      if (placed) {
        await waitUntil(async () => (await some(1)) && atEnd, 'the end of the partition');
        await placed();
      }
      await waitUntil(async () => {
        for (const { key, value, headers = [], timestamp, partition, offset } of await some(count - records.length)) {
          const pairs = headers.flatMap((header) => Object.entries(header));
          records.push({ key: key ?? null, value, headers: pairs, timestamp, partition, offset });
        }
        return records.length >= count;
      }, `${count} records`);
    } finally {
      await promisify(consumer.disconnect.bind(consumer))();
    }
    return records;
  }

  async end(topic, partition) {
    const offsets = await this.admin.fetchTopicOffsets(topic);
    return Number(offsets.find((found) => found.partition === partition).high);
  }

  // For want of such a record the library answers the end.
  async offsetAt(topic, partition, timestamp) {
    const offsets = await this.admin.fetchTopicOffsetsByTimestamp(topic, timestamp);
    const offset = Number(offsets.find((found) => found.partition === partition).offset);
    return offset < (await this.end(topic, partition)) ? offset : null;
  }

  async committed(groupId, topic, partition) {
    const [{ partitions }] = await this.admin.fetchOffsets({ groupId, topics: [topic] });
    return Number(partitions.find((found) => found.partition === partition).offset);
  }

  async join(groupId, topic, read) {
    const consumer = this.kafka.consumer({
      kafkaJS: { groupId, fromBeginning: true, autoCommit: false, sessionTimeout: 10_000, heartbeatInterval: 500 },
    });
    const progress = new Progress(topic, read, (offsets) => consumer.commitOffsets(offsets));
    const assigned = () => consumer.assignment().map((place) => place.partition);
    await consumer.connect();
    await consumer.subscribe({ topic });
    await consumer.run({ eachMessage: (message) => progress.take(message) });
    return {
      assigned,
      leave: async () => {
        // What is not held any more is another's to commit.
        const held = assigned();
        for (const partition of [...progress.pending.keys()].filter((partition) => !held.includes(partition))) {
          progress.pending.delete(partition);
        }
        await progress.commit();
        await consumer.disconnect();
      },
    };
  }
}

module.exports = { Client };
