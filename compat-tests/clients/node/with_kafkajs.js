// kafkajs. Snappy comes from its companion package; the ones for lz4 and zstd need a compiler and old headers, so those two codecs
// are hooks over packages that bring their machine code.
'use strict';

const { CompressionCodecs, CompressionTypes, Kafka, logLevel } = require('kafkajs');
const lz4 = require('lz4-napi');
const zstd = require('@bokuweb/zstd-wasm');

const { Progress, TooLarge, headersToObject, recordOf, waitUntil } = require('./client');

const TYPES = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
};
const ACKS = { 0: 0, 1: 1, all: -1 };

CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy');
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: (encoder) => lz4.compressFrame(encoder.buffer),
  decompress: (buffer) => lz4.decompressFrame(buffer),
});
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => Buffer.from(zstd.compress(encoder.buffer, 3)),
  decompress: async (buffer) => Buffer.from(zstd.decompress(buffer)),
});

class Client {
  // Headers are an object here.
  headersByName = true;
  readers = 0;

  constructor(bootstrap) {
    const address = { brokers: [bootstrap], logLevel: logLevel.WARN };
    this.plain = new Kafka(address);
    // More tries, closer together, than by default: a broker restarts in between.
    this.kafka = new Kafka({ ...address, retry: { initialRetryTime: 100, maxRetryTime: 1000, retries: 30 } });
    this.admin = this.kafka.admin();
  }

  version() {
    return require('kafkajs/package.json').version;
  }

  async open() {
    await zstd.init();
    await this.admin.connect();
  }

  create(topic, partitions) {
    return this.admin.createTopics({ topics: [{ topic, numPartitions: partitions, replicationFactor: 1 }] });
  }

  delete(topic) {
    return this.admin.deleteTopics({ topics: [topic] });
  }

  async partitions(topic) {
    if (!(await this.admin.listTopics()).includes(topic)) {
      return null;
    }
    const { topics } = await this.admin.fetchTopicMetadata({ topics: [topic] });
    return topics[0].partitions.length;
  }

  async produce(topic, records, { codec = 'none', acks = 'all', idempotent = false, partition = 0, defaults = false }) {
    const producer = defaults ? this.plain.producer() : this.kafka.producer({ idempotent });
    await producer.connect();
    const messages = records.map(({ key, value, headers, timestamp }) => ({
      key,
      value,
      headers: headersToObject(headers),
      ...(timestamp !== undefined && { timestamp: `${timestamp}` }),
      ...(partition !== null && { partition }),
    }));
    const how = defaults ? {} : { acks: ACKS[acks], compression: TYPES[codec] };
    try {
      const [answer] = (await producer.send({ topic, messages, ...how })) ?? [];
      return answer?.baseOffset === undefined ? [] : records.map((_, n) => Number(answer.baseOffset) + n);
    } catch (error) {
      throw error.type === 'MESSAGE_TOO_LARGE' ? new TooLarge() : error;
    } finally {
      await producer.disconnect();
    }
  }

  // There is no reading without a group here; the group commits nothing.
  async read(topic, partition, start, count, placed) {
    this.readers += 1;
    // The library ends only with its last fetch, which by default takes five seconds when there is nothing to read.
    const consumer = this.kafka.consumer({ groupId: `${topic}-reader-${this.readers}`, maxWaitTimeInMs: 100 });
    const records = [];
    let fetched = false;
    consumer.on(consumer.events.FETCH, () => (fetched = true));
    try {
      await consumer.connect();
      await consumer.subscribe({ topic, fromBeginning: start === 'start' });
      await consumer.run({
        autoCommit: false,
        eachMessage: async (message) => {
          if (message.partition === partition) {
            records.push(recordOf(message));
          }
        },
      });
      if (typeof start === 'number') {
        consumer.seek({ topic, partition, offset: `${start}` });
      }
      if (placed) {
        await waitUntil(() => fetched, 'the first fetch');
        await placed();
      }
      await waitUntil(() => records.length >= count, `${count} records`);
    } finally {
      await consumer.disconnect();
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
    const consumer = this.kafka.consumer({ groupId, sessionTimeout: 10_000, heartbeatInterval: 500, maxWaitTimeInMs: 500 });
    let assigned = [];
    const progress = new Progress(topic, read, (offsets) => consumer.commitOffsets(offsets));
    consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
      assigned = payload.memberAssignment[topic] ?? [];
      // Whoever holds a partition now starts at what was committed.
      progress.pending.clear();
    });
    await consumer.connect();
    await consumer.subscribe({ topic, fromBeginning: true });
    await consumer.run({ autoCommit: false, eachMessage: (message) => progress.take(message) });
    return {
      assigned: () => assigned,
      leave: async () => {
        await consumer.stop();
        await progress.commit();
        await consumer.disconnect();
      },
    };
  }
}

module.exports = { Client };
