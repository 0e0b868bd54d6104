"""Echo servers on four frameworks, and a client that checks every line: echo.py KIND PORT | client PORT..."""

import os
import socket
import sys


def uvloop(port):
    import asyncio

    import uvloop as loop

    class Echo(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            self.transport.write(data)

    async def serve():
        server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", port)
        await server.serve_forever()

    loop.install()
    asyncio.run(serve())


def gevent(port):
    from gevent.server import StreamServer

    def echo(connection, _):
        while data := connection.recv(65536):
            connection.sendall(data)

    StreamServer(("127.0.0.1", port), echo).serve_forever()


def twisted(port):
    from twisted.internet import protocol, reactor

    class Echo(protocol.Protocol):
        def dataReceived(self, data):
            self.transport.write(data)

    reactor.listenTCP(port, protocol.Factory.forProtocol(Echo), interface="127.0.0.1")
    reactor.run()


def forks(port):
    """Each connection changes hands after a thousand lines: a child of the one who had it goes on."""
    listener = socket.create_server(("127.0.0.1", port))
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            lines = connection.makefile("rwb", buffering=0)
            for count, line in enumerate(iter(lines.readline, b"")):
                lines.write(line)
                if count % 1000 == 999 and os.fork() != 0:
                    os.wait()
                    os._exit(0)
            os._exit(0)
        connection.close()


def client(port):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        lines = connection.makefile("rwb")
        for number in range(5000):
            line = b"%d " % number + b"x" * (number % 3000) + b"\n"
            lines.write(line)
            lines.flush()
            if lines.readline() != line:
                sys.exit(f"line {number} came back different")
    print("every line came back")


if __name__ == "__main__":
    kind, *ports = sys.argv[1:]
    for number in ports:
        globals()[kind](int(number))
