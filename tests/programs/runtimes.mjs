// A server by the own interface of Deno or Bun with HTTP and WebSocket, an echo by node:net, and a
// client that sums what they say: runtimes.mjs server|client PORT PORT2
import { createHash } from "node:crypto";
import net from "node:net";

const SIZES = [1, 1000, 65536, 1000000];
const ROUNDS = 100;
const STREAM = 12345678;

const body = (path) => Buffer.alloc(Number(path.slice(1)) || 0, `${path}\n`);
const sum = (bytes) => createHash("sha256").update(bytes).digest("hex");

function serve(port) {
    const hostname = "127.0.0.1";
    const answer = (request) => new Response(body(new URL(request.url).pathname));
    const asksForMessages = (request) => request.headers.get("upgrade") === "websocket";
    if (globalThis.Bun) {
        const websocket = { message: (socket, message) => void socket.send(message) };
        const fetch = (request, server) =>
            asksForMessages(request) ? void server.upgrade(request) : answer(request);
        Bun.serve({ hostname, port, fetch, websocket });
        return;
    }
    Deno.serve({ hostname, port, onListen() {} }, (request) => {
        if (!asksForMessages(request)) return answer(request);
        const { socket, response } = Deno.upgradeWebSocket(request);
        socket.binaryType = "arraybuffer";
        socket.onmessage = ({ data }) => socket.send(data);
        return response;
    });
}

function echo(port) {
    net.createServer((socket) => socket.pipe(socket)).listen(port, "127.0.0.1");
}

async function requests(port) {
    for (const size of SIZES) {
        const sums = new Set();
        for (let round = 0; round < ROUNDS; round++) {
            const asked = Array.from({ length: 4 }, async () => {
                const response = await fetch(`http://127.0.0.1:${port}/${size}`);
                return sum(Buffer.from(await response.arrayBuffer()));
            });
            for (const one of await Promise.all(asked)) sums.add(one);
        }
        console.log("requests of", size, ...sums);
    }
}

function messages(port) {
    return new Promise((resolve, reject) => {
        const socket = new WebSocket(`ws://127.0.0.1:${port}/`);
        const got = [];
        const count = SIZES.length * ROUNDS;
        socket.binaryType = "arraybuffer";
        socket.onerror = reject;
        const next = () => socket.send(body(`/${SIZES[got.length % SIZES.length]}`));
        socket.onopen = next;
        socket.onmessage = ({ data }) => {
            if (got.push(sum(Buffer.from(data))) < count) return next();
            socket.close();
            console.log("messages", got.length, ...new Set(got));
            resolve();
        };
    });
}

function stream(port) {
    return new Promise((resolve, reject) => {
        const sent = body(`/${STREAM}`);
        const got = [];
        const socket = net.connect(port, "127.0.0.1", () => socket.end(sent));
        socket.on("data", (data) => got.push(data));
        socket.on("error", reject);
        socket.on("end", () => {
            const all = Buffer.concat(got);
            console.log("stream of", all.length, sum(all) === sum(sent));
            resolve();
        });
    });
}

const [kind, port, port2] = process.argv.slice(2);
if (kind === "server") {
    echo(Number(port2));
    serve(Number(port));
} else {
    await requests(port);
    await messages(port);
    await Promise.all([stream(Number(port2)), stream(Number(port2))]);
    process.exit(0);
}
