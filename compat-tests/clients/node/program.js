// Runs the common cases with one Node client: `program.js ADAPTER --bootstrap ADDRESS --prefix PREFIX CASE...`.
'use strict';

const readline = require('node:readline');
const { cases } = require('./cases');

const say = (line) => process.stdout.write(JSON.stringify(line) + '\n');
const answers = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();

// Has the harness do something to the broker, and returns its answer when it is done.
async function ask(what) {
  say({ ask: what });
  const answer = JSON.parse((await answers.next()).value);
  if (!answer.ok) {
    throw new Error(`the harness could not ${what} the broker: ${answer.error}`);
  }
  return answer;
}

// The libraries log as they like; stdout is the harness's.
for (const level of ['log', 'info', 'warn', 'debug']) {
  console[level] = console.error;
}

async function main() {
  const [adapter, ...rest] = process.argv.slice(2);
  const names = [];
  const options = {};
  while (rest.length > 0) {
    const word = rest.shift();
    if (word.startsWith('--')) {
      options[word.slice(2)] = rest.shift();
    } else {
      names.push(word);
    }
  }
  const { Client } = require(`./with_${adapter}`);
  const client = new Client(options.bootstrap);
  await client.open();
  say({ version: client.version() });
  for (const name of names) {
    say({ begin: name });
    const begun = performance.now();
    let [status, detail] = ['pass', ''];
    try {
      if (!cases[name]) {
        throw new Error('no such case');
      }
      detail = (await cases[name](client, options.prefix + name, ask)) ?? '';
    } catch (error) {
      console.error(error);
      [status, detail] = ['fail', `${error.name}: ${error.message}`];
    }
    say({ case: name, status, detail, ms: performance.now() - begun });
  }
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
