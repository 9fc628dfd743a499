// The common cases. Each `with_<name>.js` has a Client with these methods, all asynchronous but `version`:
//
// - open(), version()
// - create(topic, partitions) -> whether it is new, delete(topic), partitions(topic) -> count, or null when there is none
// - produce(topic, records, how) -> offsets ([] with acks 0), in one batch where the client allows; `how` may have codec, acks,
//   idempotent, partition (null: where the key belongs), limit (raises the client's own size limit), defaults (nothing
//   configured but the address); throws TooLarge
// - read(topic, partition, start, count, placed) -> records; start is 'start', 'end' or an offset; `placed` is called when the
//   consumer stands at its start
// - end(topic, partition), offsetAt(topic, partition, timestamp) -> offset or null, committed(group, topic, partition)
// - join(group, topic, read) -> a member that hands each record to `read` and then commits it; it has assigned() -> partition
//   numbers, leave()
//
// A record has key and value (Buffer or null), headers (pairs of name and Buffer), timestamp (milliseconds), partition, offset.
'use strict';

const assert = require('node:assert');
const { TooLarge, waitUntil } = require('./client');

const text = (buffer) => (buffer === null ? null : buffer.toString('latin1'));
const values = (records) => records.map((record) => text(record.value));

function numbered(count, words = 'value') {
  return Array.from({ length: count }, (_, n) => ({ key: Buffer.from('key'), value: Buffer.from(`${words} ${n}`) }));
}

// Sends records to a new topic of one partition and reads them back.
async function exchange(client, topic, count, words, how) {
  await client.create(topic, 1);
  const sent = numbered(count, words);
  const dense = [...Array(count).keys()];
  const offsets = await client.produce(topic, sent, how);
  if (how.acks !== '0' && !how.defaults) {
    assert.deepStrictEqual(offsets, dense);
  }
  const read = await client.read(topic, 0, 'start', count);
  assert.deepStrictEqual(values(read), values(sent));
  assert.deepStrictEqual(read.map((record) => record.offset), dense);
}

async function keys(client, topic) {
  await client.create(topic, 3);
  const sent = Array.from({ length: 100 }, (_, n) => ({ key: Buffer.from(`key ${n % 20}`), value: Buffer.from(`${n}`) }));
  await client.produce(topic, sent, { partition: null });
  const places = new Map();
  const pairs = [];
  for (let partition = 0; partition < 3; partition++) {
    const count = await client.end(topic, partition);
    const read = count > 0 ? await client.read(topic, partition, 'start', count) : [];
    for (const record of read) {
      const key = text(record.key);
      assert.strictEqual(places.get(key) ?? partition, partition, `${key} is on two partitions`);
      places.set(key, partition);
      pairs.push(`${key} = ${text(record.value)}`);
    }
  }
  assert.deepStrictEqual(pairs.sort(), sent.map((record) => `${record.key} = ${record.value}`).sort());
}

async function headersDuplicate(client, topic) {
  await client.create(topic, 1);
  const headers = [['a', '1'], ['b', '2'], ['a', '3'], ['empty', '']];
  const sent = { key: Buffer.from('k'), value: Buffer.from('v'), headers: headers.map(([name, value]) => [name, Buffer.from(value)]) };
  await client.produce(topic, [sent], {});
  const [read] = await client.read(topic, 0, 'start', 1);
  const found = read.headers.map(([name, value]) => [name, text(value)]);
  if (client.headersByName) {
    // An object with lists for values: what the order between names was cannot be said, sent or seen.
    const byName = (pairs) => pairs.toSorted(([one], [other]) => one.localeCompare(other));
    assert.deepStrictEqual(byName(found), byName(headers));
    return 'this client groups headers by name';
  }
  assert.deepStrictEqual(found, headers);
}

async function nullAndEmpty(client, topic) {
  await client.create(topic, 1);
  const sent = [
    { key: null, value: Buffer.from('null key') },
    { key: Buffer.alloc(0), value: Buffer.from('empty key') },
    { key: Buffer.from('null value'), value: null },
    { key: Buffer.from('empty value'), value: Buffer.alloc(0) },
  ];
  await client.produce(topic, sent, {});
  const read = await client.read(topic, 0, 'start', sent.length);
  if (client.emptyIsNull) {
    sent[1].key = null;
    sent[3].value = null;
  }
  const pairs = (records) => records.map(({ key, value }) => [text(key), text(value)]);
  assert.deepStrictEqual(pairs(read), pairs(sent));
}

async function record1mb(client, topic) {
  await client.create(topic, 1);
  const large = Buffer.alloc(1_000_000, '0123456789');
  await client.produce(topic, [{ key: null, value: large }], { limit: 1_040_000 });
  const [read] = await client.read(topic, 0, 'start', 1);
  assert.ok(read.value.equals(large), 'the record came back changed');
  const larger = { key: null, value: Buffer.concat([large, large]) };
  await assert.rejects(() => client.produce(topic, [larger], { limit: 10_000_000 }), TooLarge);
  assert.strictEqual(await client.end(topic, 0), 1);
}

async function withTen(client, topic) {
  await client.create(topic, 1);
  const sent = numbered(10);
  await client.produce(topic, sent, {});
  return sent;
}

async function readEnd(client, topic) {
  await withTen(client, topic);
  const later = numbered(3, 'later');
  const read = await client.read(topic, 0, 'end', 3, () => client.produce(topic, later, {}));
  assert.deepStrictEqual(values(read), values(later));
}

// The harness writes the topic, and says what must be left of it.
async function compacted(client, _, ask) {
  const { topic, survivors } = await ask('compacted');
  const wanted = survivors.split(';');
  const read = await client.read(topic, 0, 'start', wanted.length);
  assert.deepStrictEqual(read.map((record) => `${record.offset} ${text(record.key)} ${text(record.value) ?? '-'}`), wanted);
  assert.strictEqual(await client.end(topic, 0), read.at(-1).offset + 1);
}

async function readOffset(client, topic) {
  const sent = await withTen(client, topic);
  assert.deepStrictEqual(values(await client.read(topic, 0, 5, 5)), values(sent.slice(5)));
}

async function readTimestamp(client, topic) {
  await client.create(topic, 1);
  const first = Date.now() - 60_000;
  const sent = numbered(10).map((record, n) => ({ ...record, timestamp: first + 1000 * n }));
  await client.produce(topic, sent, {});
  assert.strictEqual(await client.offsetAt(topic, 0, first + 4500), 5);
  assert.deepStrictEqual(values(await client.read(topic, 0, 5, 5)), values(sent.slice(5)));
  assert.strictEqual(await client.offsetAt(topic, 0, first + 3_600_000), null);
}

async function groupOfThree(client, topic, ask) {
  await client.create(topic, 6);
  const group = `${topic}-group`;
  const read = new Set();
  const sent = [];
  const committed = Array(6).fill(0);

  async function send(words) {
    for (let partition = 0; partition < 6; partition++) {
      const records = numbered(10, `${words} ${partition}`);
      await client.produce(topic, records, { partition });
      sent.push(...values(records));
    }
  }
  function shared(members, what) {
    return waitUntil(() => {
      const parts = members.map((member) => member.assigned());
      const all = parts.flat();
      return parts.every((part) => part.length > 0) && all.length === 6 && new Set(all).size === 6;
    }, what, 40);
  }
  async function allRead(what) {
    await waitUntil(() => sent.every((value) => read.has(value)), what, 40);
    for (let partition = 0; partition < 6; partition++) {
      const at = await client.committed(group, topic, partition);
      assert.ok(at >= committed[partition], `the committed offset of ${partition} went back to ${at}`);
      committed[partition] = at;
    }
  }
  const join = () => client.join(group, topic, (record) => read.add(text(record.value)));

  await send('before');
  const first = await join();
  const second = await join();
  await shared([first, second], 'two members to share the partitions');
  const third = await join();
  await shared([first, second, third], 'the third member to get its part');
  await ask('restart');
  await send('restarted');
  await allRead('all records after the restart');
  await shared([first, second, third], 'the members to be together again');
  await second.leave();
  await shared([first, third], 'the others to take over');
  await send('left');
  await allRead('all records after the leave');
  await first.leave();
  await third.leave();
  for (let partition = 0; partition < 6; partition++) {
    assert.strictEqual(await client.committed(group, topic, partition), 30);
  }
}

async function commitResume(client, topic) {
  await client.create(topic, 1);
  const group = `${topic}-group`;
  const sent = numbered(10);
  for (const half of [sent.slice(0, 5), sent.slice(5)]) {
    await client.produce(topic, half, {});
    const read = [];
    const member = await client.join(group, topic, (record) => read.push(record));
    await waitUntil(() => read.length >= 5, 'five records', 15);
    await member.leave();
    assert.deepStrictEqual(values(read), values(half));
    assert.strictEqual(await client.committed(group, topic, 0), half[0] === sent[0] ? 5 : 10);
  }
}

async function topicAdmin(client, topic) {
  assert.ok(await client.create(topic, 3), 'the topic was there already');
  // The controller answers when the topic is made; brokers hear of it a moment later.
  await waitUntil(async () => (await client.partitions(topic)) !== null, 'the topic to be seen', 15);
  assert.strictEqual(await client.partitions(topic), 3);
  assert.ok(!(await client.create(topic, 3)), 'the topic was created twice');
  await client.delete(topic);
  await waitUntil(async () => (await client.partitions(topic)) === null, 'the topic to be gone', 15);
}

async function autoCreate(client, topic) {
  const begun = performance.now();
  await client.produce(topic, numbered(1, 'first'), {});
  await client.read(topic, 0, 'start', 1);
  const took = performance.now() - begun;
  assert.ok(took < 5000, `took ${took} ms`);
}

const codec = (codec) => (client, topic) => exchange(client, topic, 10, 'compressible '.repeat(20), { codec, idempotent: true });
const acks = (acks) => (client, topic) => exchange(client, topic, 100, 'value', { acks, idempotent: false });

exports.cases = {
  'codec-none': codec('none'),
  'codec-gzip': codec('gzip'),
  'codec-snappy': codec('snappy'),
  'codec-lz4': codec('lz4'),
  'codec-zstd': codec('zstd'),
  'acks-0': acks('0'),
  'acks-1': acks('1'),
  'acks-all': acks('all'),
  'default-settings': (client, topic) => exchange(client, topic, 100, 'value', { defaults: true }),
  idempotent: async (client, topic) => {
    await exchange(client, topic, 1000, 'value', { idempotent: true });
    assert.strictEqual(await client.end(topic, 0), 1000);
  },
  keys,
  'headers-duplicate': headersDuplicate,
  'null-and-empty': nullAndEmpty,
  'record-1mb': record1mb,
  'read-start': (client, topic) => exchange(client, topic, 10, 'value', {}),
  'read-end': readEnd,
  'read-offset': readOffset,
  compacted,
  'read-timestamp': readTimestamp,
  'group-of-three': groupOfThree,
  'commit-resume': commitResume,
  'topic-admin': topicAdmin,
  'auto-create': autoCreate,
};
