"""A transparent proxy, which asks where its connections were meant to go (SO_ORIGINAL_DST).

    redirected.py proxy HOST
    redirected.py client HOST LONG SHORT

The client keeps one connection to each address busy until the file LONG exists, and then makes
short ones until the file SHORT exists. It prints what the proxy was told about each.
"""

import asyncio
import os
import socket
import struct
import sys

# The proxy's own, and two that are redirected to it.
PORTS = [7001, 8000, 8001]
BLOCK = 4096
SO_ORIGINAL_DST = 80


def original(connection):
    try:
        if connection.family == socket.AF_INET:
            answer = connection.getsockopt(socket.IPPROTO_IP, SO_ORIGINAL_DST, 16)
            port, host = struct.unpack_from("!H4s", answer, 2)
        else:
            answer = connection.getsockopt(socket.IPPROTO_IPV6, SO_ORIGINAL_DST, 28)
            port, host = struct.unpack_from("!H4x16s", answer, 2)
        return f"{socket.inet_ntop(connection.family, host)} {port} of {len(answer)} bytes"
    except OSError as error:
        return f"error {error.errno}"


async def serve(reader, writer):
    connection = writer.get_extra_info("socket")
    accepted = original(connection)
    try:
        while block := await reader.readexactly(BLOCK):
            if block.startswith(b"?"):
                text = f"{accepted}, then {original(connection)}"
                block = text.encode().ljust(BLOCK)
            writer.write(block)
            await writer.drain()
    except asyncio.IncompleteReadError:
        writer.close()


async def proxy(host):
    server = await asyncio.start_server(serve, host, PORTS[0], backlog=64)
    print("listens", flush=True)
    await server.serve_forever()


def block_from(connection):
    block = b""
    while len(block) < BLOCK:
        part = connection.recv(BLOCK - len(block))
        assert part, "the proxy has closed"
        block += part
    return block


def exchange(connection, block):
    connection.sendall(block)
    return block_from(connection)


def ask(connection):
    return exchange(connection, b"?".ljust(BLOCK)).decode().strip()


def client(host, long, short):
    places = [(host, port) for port in PORTS]
    connections = [socket.create_connection(place) for place in places]
    while True:
        for connection in connections:
            assert exchange(connection, bytes(BLOCK)) == bytes(BLOCK)
        if os.path.exists(long):
            break
    for place, connection in zip(places, connections):
        print("long", *place, "is told", ask(connection))
        connection.close()
    told = {}
    while True:
        for place in places:
            with socket.create_connection(place) as connection:
                told.setdefault(place, set()).add(ask(connection))
        if os.path.exists(short):
            break
    for place in places:
        print("short", *place, "is told", *sorted(told[place]))


if sys.argv[1] == "proxy":
    asyncio.run(proxy(sys.argv[2]))
else:
    client(*sys.argv[2:])
