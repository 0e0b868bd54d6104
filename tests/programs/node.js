// HTTP/1.1 in a worker thread and HTTP/2, and a client that sums what they say: node.js server|client|cluster PORT PORT2
"use strict";
const crypto = require("crypto");
const http = require("http");
const http2 = require("http2");
const { Worker, isMainThread, workerData } = require("worker_threads");

const body = (path) => Buffer.alloc(Number(path.slice(1)) || 0, `${path}\n`);
const answer = (request, response) => response.end(body(request.url));
const SIZES = [1, 1000, 65536, 1000000];
const ROUNDS = 100;

function get(agent, port, size) {
    return new Promise((resolve, reject) => {
        const sum = crypto.createHash("sha256");
        http.get({ host: "127.0.0.1", port, path: `/${size}`, agent }, (response) => {
            response.on("data", (data) => sum.update(data));
            response.on("end", () => resolve(sum.digest("hex")));
        }).on("error", reject);
    });
}

function get2(session, size) {
    return new Promise((resolve, reject) => {
        const sum = crypto.createHash("sha256");
        const stream = session.request({ ":path": `/${size}` });
        stream.on("data", (data) => sum.update(data));
        stream.on("end", () => resolve(sum.digest("hex")));
        stream.on("error", reject);
    });
}

async function client(port, port2) {
    const agent = new http.Agent({ keepAlive: true, maxSockets: 4 });
    const session = port2 && http2.connect(`http://127.0.0.1:${port2}`);
    for (const size of SIZES) {
        const sums = new Set();
        for (let round = 0; round < ROUNDS; round++) {
            const asked = [get(agent, port, size), get(agent, port, size)];
            if (session) asked.push(get2(session, size), get2(session, size));
            for (const sum of await Promise.all(asked)) sums.add(sum);
        }
        console.log(size, ...sums);
    }
    agent.destroy();
    if (session) session.close();
}

const [kind, port, port2] = process.argv.slice(2);
if (!isMainThread) {
    http.createServer(answer).listen(workerData, "127.0.0.1");
} else if (kind === "server") {
    new Worker(__filename, { workerData: Number(port) });
    http2.createServer(answer).listen(Number(port2), "127.0.0.1");
} else if (kind === "cluster") {
    const cluster = require("cluster");
    if (cluster.isPrimary) {
        for (let count = 0; count < 2; count++) cluster.fork();
    } else {
        http.createServer(answer).listen(Number(port), "127.0.0.1");
    }
} else {
    client(Number(port), Number(port2));
}
