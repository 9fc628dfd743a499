// What the adapters share.
'use strict';

// The broker refused a record as too large.
class TooLarge extends Error {}

// Tries until the condition holds.
async function waitUntil(condition, what, seconds = 15) {
  const deadline = performance.now() + seconds * 1000;
  while (!(await condition())) {
    if (performance.now() > deadline) {
      throw new Error(`waited ${seconds} s for ${what}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

// Headers as an object, a list for a name that is there several times, and back.
function headersToObject(pairs = []) {
  const headers = {};
  for (const [name, value] of pairs) {
    headers[name] = name in headers ? [headers[name], value].flat() : value;
  }
  return headers;
}

function headersFromObject(headers = {}) {
  return Object.entries(headers).flatMap(([name, value]) => [value].flat().map((one) => [name, one]));
}

// A record from what both libraries hand to `eachMessage`.
function recordOf({ partition, message }) {
  return {
    key: message.key ?? null,
    value: message.value ?? null,
    headers: headersFromObject(message.headers),
    timestamp: Number(message.timestamp),
    partition,
    offset: Number(message.offset),
  };
}

// The part of a member that both libraries share: hands records on, commits them, and keeps for later what the broker did not take.
class Progress {
  constructor(topic, read, commit) {
    this.topic = topic;
    this.read = read;
    this.commitNow = commit;
    this.pending = new Map();
  }

  async take(message) {
    const record = recordOf(message);
    this.read(record);
    this.pending.set(record.partition, record.offset + 1);
    await this.commit();
  }

  async commit() {
    const offsets = [...this.pending].map(([partition, offset]) => ({ topic: this.topic, partition, offset: `${offset}` }));
    if (offsets.length === 0) {
      return;
    }
    try {
      await this.commitNow(offsets);
      this.pending.clear();
    } catch (error) {
      // The group rebalances or the broker restarts: another record, the leave or the partition's next owner sees to it.
      console.error('not committed:', error.message);
    }
  }
}

module.exports = { TooLarge, waitUntil, headersToObject, headersFromObject, recordOf, Progress };
