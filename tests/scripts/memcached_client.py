"""Sets and gets values of many sizes over several memcached connections, and checks every one."""

import random
import socket
import sys

CONNECTIONS = 8
KEYS = 400
ROUNDS = 5


def connect(port):
    stream = socket.create_connection(("127.0.0.1", port))
    return stream, stream.makefile("rb")


def value(key, generation):
    source = random.Random(key * 1000 + generation)
    return source.randbytes(source.randrange(1, 60_000))


def main():
    connections = [connect(int(sys.argv[1])) for _ in range(CONNECTIONS)]
    for generation in range(ROUNDS):
        for key in range(KEYS):
            stream, lines = connections[key % CONNECTIONS]
            body = value(key, generation)
            stream.sendall(b"set key%d 0 0 %d\r\n%s\r\n" % (key, len(body), body))
            assert lines.readline() == b"STORED\r\n"
        for key in range(KEYS):
            stream, lines = connections[(key + 3) % CONNECTIONS]
            stream.sendall(b"get key%d\r\n" % key)
            expected = value(key, generation)
            assert lines.readline() == b"VALUE key%d 0 %d\r\n" % (key, len(expected))
            assert lines.read(len(expected) + 2) == expected + b"\r\n", f"key{key} differs"
            assert lines.readline() == b"END\r\n"
    print("every value came back")


main()
