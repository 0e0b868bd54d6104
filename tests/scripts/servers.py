"""Python's own servers and clients: `servers.py server|client KIND PORT`."""

import asyncio
import http.client
import http.server
import os
import random
import selectors
import socket
import socketserver
import sys
import threading
import urllib.request

HOST = "127.0.0.1"
CONNECTIONS = 6
MESSAGES = 250
# After so many answers of a kept connection they do not wait for acknowledgements any more: on the
# kernel each waits 40 ms.
NAGLE = 50


def messages(seed):
    source = random.Random(seed)
    for _ in range(MESSAGES):
        yield source.randbytes(source.choice([1, 10, 100, 1000, 30_000, 200_000]))


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)


class Threads(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


class Forks(socketserver.ForkingTCPServer):
    allow_reuse_address = True


async def asyncio_server(port):
    async def echo(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, HOST, port)
    await server.serve_forever()


async def asyncio_client(port):
    async def talk(seed):
        reader, writer = await asyncio.open_connection(HOST, port)
        for message in messages(seed):
            writer.write(message)
            assert await reader.readexactly(len(message)) == message
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(talk(seed) for seed in range(CONNECTIONS)))


def selectors_server(port):
    listener = socket.create_server((HOST, port))
    listener.setblocking(False)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ, None)
    while True:
        for key, events in selector.select():
            if key.data is None:
                stream, _ = listener.accept()
                stream.setblocking(False)
                selector.register(stream, selectors.EVENT_READ, bytearray())
                continue
            stream, waiting = key.fileobj, key.data
            if events & selectors.EVENT_READ:
                data = stream.recv(50_000)
                if not data and not waiting:
                    selector.unregister(stream)
                    stream.close()
                    continue
                waiting += data
            if waiting:
                try:
                    del waiting[: stream.send(waiting)]
                except BlockingIOError:
                    pass
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if waiting else 0)
            selector.modify(stream, wanted, waiting)


def blocking_client(port):
    failures = []

    def talk(seed):
        try:
            with socket.create_connection((HOST, port)) as stream:
                for message in messages(seed):
                    sender = threading.Thread(target=stream.sendall, args=(message,))
                    sender.start()
                    received = bytearray()
                    while len(received) < len(message):
                        data = stream.recv(len(message) - len(received))
                        assert data, "the stream ended early"
                        received += data
                    sender.join()
                    assert received == message
                stream.shutdown(socket.SHUT_WR)
                assert stream.recv(10) == b""
        except BaseException as failure:
            failures.append((seed, failure))

    threads = [threading.Thread(target=talk, args=(seed,)) for seed in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


class Bodies(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served = 0

    def do_GET(self):
        self.served += 1
        if self.served == NAGLE:
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = random.Random(self.path).randbytes(int(self.path.strip("/")))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def http_client(port):
    for size in [0, 1, 1000, 100_000, 3_000_000] * 4:
        url = f"http://{HOST}:{port}/{size}"
        with urllib.request.urlopen(url, timeout=30) as response:
            assert response.read() == random.Random(f"/{size}").randbytes(size)
        body = os.urandom(size)
        with urllib.request.urlopen(url, data=body, timeout=30) as response:
            assert response.read() == body
    # One kept connection, many requests.
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    for number in range(600):
        connection.request("GET", f"/{number}")
        assert connection.getresponse().read() == random.Random(f"/{number}").randbytes(number)


def main():
    role, kind, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if role == "server":
        if kind == "asyncio":
            asyncio.run(asyncio_server(port))
        elif kind == "threads":
            Threads((HOST, port), Echo).serve_forever()
        elif kind == "forks":
            Forks((HOST, port), Echo).serve_forever()
        elif kind == "selectors":
            selectors_server(port)
        elif kind == "http":
            http.server.ThreadingHTTPServer((HOST, port), Bodies).serve_forever()
    else:
        if kind == "asyncio":
            asyncio.run(asyncio_client(port))
        elif kind == "http":
            http_client(port)
        else:
            blocking_client(port)
        print("all exact")


main()
