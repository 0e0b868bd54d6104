// Node's own HTTP server and client: `servers.js server|client http PORT`.
'use strict';
const http = require('http');

const [, , role, , port] = process.argv;
const SIZES = [0, 1, 1000, 100000, 3000000];
const REQUESTS = 400;

// Bytes that follow from their position and a seed.
function body(seed, size) {
  const bytes = Buffer.alloc(size);
  let state = (seed * 2654435761 + 1) >>> 0;
  for (let index = 0; index < size; index++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    bytes[index] = state >>> 24;
  }
  return bytes;
}

function server() {
  http.createServer((request, response) => {
    if (request.method === 'POST') {
      request.pipe(response);
    } else {
      const size = Number(request.url.slice(1));
      response.end(body(size, size));
    }
  }).listen(Number(port), '127.0.0.1');
}

function ask(agent, method, size, sent) {
  return new Promise((resolve, reject) => {
    const request = http.request(
      { host: '127.0.0.1', port, method, path: `/${size}`, agent }, (response) => {
        const parts = [];
        response.on('data', (part) => parts.push(part));
        response.on('error', reject);
        response.on('end', () => resolve(Buffer.concat(parts)));
      });
    request.on('error', reject);
    request.end(sent);
  });
}

async function client() {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 4 });
  const check = async (method, size, sent) => {
    const got = await ask(agent, method, size, sent);
    const expected = sent || body(size, size);
    if (!got.equals(expected)) throw new Error(`${method} of ${size} bytes is not exact`);
  };
  for (const size of SIZES) {
    await Promise.all([1, 2, 3, 4].map(() => check('GET', size)));
    await Promise.all([1, 2, 3, 4].map((seed) => check('POST', size, body(seed, size))));
  }
  for (let number = 0; number < REQUESTS; number++) {
    await Promise.all([0, 1, 2, 3].map((offset) => check('GET', number + offset)));
  }
  agent.destroy();
  console.log('all exact');
}

if (role === 'server') {
  server();
} else {
  client().catch((error) => { console.error(error); process.exit(1); });
}
