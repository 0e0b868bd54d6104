"""Fast Open (RFC 7413). A role, its arguments.

server PORT WHEN        echoes the first bytes of each connection, and ends it; TCP_FASTOPEN is set
                        before it listens, after that, or never
client ADDRESS PORT SYN_DATA...
                        connects with a request for each word; the word says whether the SYN took
                        the request along: 1, 0, or - for either
"""

import socket
import sys

REQUEST = b"request" * 60
SYN_DATA = 32  # TCPI_OPT_SYN_DATA


def server(port, when):
    listener = socket.socket(socket.AF_INET6)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("::", int(port)))
    if when == "before":
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_FASTOPEN, 16)
    listener.listen(16)
    if when == "after":
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_FASTOPEN, 16)
    print("listening", flush=True)
    while True:
        connection, _ = listener.accept()
        got = b""
        while len(got) < len(REQUEST):
            more = connection.recv(4096)
            if not more:
                break
            got += more
        connection.sendall(got)
        connection.close()


def exchange(address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    connection = socket.socket(family)
    sent = connection.sendto(REQUEST, socket.MSG_FASTOPEN, (address, int(port)))
    assert sent == len(REQUEST), sent
    got = b""
    while more := connection.recv(4096):
        got += more
    assert got == REQUEST, got
    options = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[5]
    connection.close()
    return int(options & SYN_DATA != 0)


def client(address, port, expected):
    for word in expected.split():
        got = exchange(address, port)
        assert word in ("-", str(got)), (got, expected)
    print("ok")


if __name__ == "__main__":
    {"server": server, "client": client}[sys.argv[1]](*sys.argv[2:])
