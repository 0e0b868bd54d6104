"""Fast Open (RFC 7413). A role, its arguments.

server PORT WHEN        echoes the first bytes of each connection, and ends it; TCP_FASTOPEN is set
                        before it listens, after that, or never
client ADDRESS PORT SYN_DATA...
                        connects with a request for each word; the word says whether the SYN took
                        the request along: 1, 0, or - for either
telling PORT            answers each request, which ends with the stream, with a byte that says
                        whether the SYN brought payload, and the request
asking ADDRESS PORT LENGTH WAY SYN_DATA...
                        a request of that length for each word, which is what the server is to tell.
                        The way is sendto, sendmsg, rights (sendmsg with a descriptor), sendmmsg
                        or option, and blocks, polls or epoll
failing ADDRESS PORT WAY ERROR
                        opens a connection in such a way, of which this comes
deferring ADDRESS PORT  says what a program sees of a connection of TCP_FASTOPEN_CONNECT, once it
                        has a cookie
leaving ADDRESS PORT WAY LENGTH HOW
                        opens a connection, and asks for nothing before it closes it, or ends
"""

import array
import ctypes
import errno
import os
import select
import socket
import sys
import time

REQUEST = b"request" * 60
SYN_DATA = 32  # TCPI_OPT_SYN_DATA
TCP_FASTOPEN_CONNECT = 30


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


def has_syn_data(connection):
    return int(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[5] & SYN_DATA != 0)


def telling(port):
    listener = socket.socket(socket.AF_INET6)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("::", int(port)))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_FASTOPEN, 16)
    listener.listen(16)
    print("listening", flush=True)
    while True:
        connection, _ = listener.accept()
        try:
            tell(connection)
        except ConnectionError as error:
            print("failed:", errno.errorcode[error.errno], flush=True)
        connection.close()


def tell(connection):
    got = b""
    while more := connection.recv(65536):
        got += more
    syn_data = has_syn_data(connection)
    print("request:", len(got), syn_data, flush=True)
    connection.sendall(b"%d" % syn_data + got)


def wanted(length):
    """Bytes that tell every place from the next."""
    return bytes((n * 31 + n // 256) % 256 for n in range(length))


def family_of(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_char_p), ("len", ctypes.c_size_t)]


class Header(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("name_len", ctypes.c_uint),
        ("parts", ctypes.POINTER(Vector)),
        ("parts_len", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_len", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    ]


class Message(ctypes.Structure):
    _fields_ = [("header", Header), ("sent", ctypes.c_uint)]


def sendmmsg(connection, request, where):
    """Opens a connection by the first of two messages. The second one is not sent, because the
    socket is connected by then."""
    address, port = where
    is_v6 = connection.family == socket.AF_INET6
    ip = socket.inet_pton(connection.family, address)
    name = connection.family.to_bytes(2, sys.byteorder) + port.to_bytes(2, "big")
    name += bytes(4) + ip + bytes(4) if is_v6 else ip + bytes(8)
    pieces = [request[:5], request[5:]]
    parts = (Vector * 2)(*[Vector(piece, len(piece)) for piece in pieces])
    messages = (Message * 2)()
    for message in messages:
        message.header = Header(name, len(name), parts, len(parts))
    libc = ctypes.CDLL(None, use_errno=True)
    count = libc.sendmmsg(connection.fileno(), messages, 2, int(socket.MSG_FASTOPEN))
    if count < 0:
        raise OSError(ctypes.get_errno(), "sendmmsg")
    assert count == 1, count
    return messages[0].sent


def begin(address, port, request, way):
    """A connection that a request opens, and how much of it the first call took."""
    connection = socket.socket(family_of(address))
    where = (address, int(port))
    call, mode = way.split("-")
    connection.setblocking(mode == "blocks")
    epoll = select.epoll() if mode == "epoll" else None
    if epoll:
        epoll.register(connection, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
        epoll.poll(0)
    try:
        if call == "sendto":
            taken = connection.sendto(request, socket.MSG_FASTOPEN, where)
        elif call in ("sendmsg", "rights"):
            parts = [request[:5], b"", request[5:700], request[700:]]
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))
            control = [rights] if call == "rights" else []
            taken = connection.sendmsg(parts, control, socket.MSG_FASTOPEN, where)
        elif call == "sendmmsg":
            taken = sendmmsg(connection, request, where)
        else:
            connection.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1)
            connection.connect(where)
            taken = connection.send(request)
    except BlockingIOError as error:
        assert error.errno == errno.EINPROGRESS, error
        taken = 0
    if mode == "epoll":
        events = epoll.poll(20)
        assert [event & select.EPOLLOUT for _, event in events] == [select.EPOLLOUT], events
    connection.settimeout(20)
    return connection, taken


def asking(address, port, length, way, expected):
    request = wanted(int(length))
    for word in expected.split():
        connection, taken = begin(address, port, request, way)
        if taken == 0:
            select.select([], [connection], [], 20)
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        connection.sendall(request[taken:])
        connection.shutdown(socket.SHUT_WR)
        got = b""
        while more := connection.recv(65536):
            got += more
        assert got[1:] == request, (len(got), way)
        assert word in ("-", got[:1].decode()), (got[:1], expected, way)
        # Only a cookie lets a call that does not wait take anything, unless `connect` was quick.
        is_all = taken == len(request)
        is_right = is_all if way.endswith("blocks") else (taken > 0) == (word == "1")
        assert is_right or word == "-" or way.startswith("option") and word == "0", (taken, way)
        connection.close()
    print("ok")


def failing(address, port, way, expected):
    """Nobody listens, or nobody answers: the error, and where the program hears it."""
    connection, taken = None, 0
    try:
        connection, taken = begin(address, port, b"lost", way)
    except OSError as error:
        print("call:", errno.errorcode[error.errno], flush=True)
        assert errno.errorcode[error.errno] == expected
        print("ok")
        return
    print("taken:", taken, flush=True)
    try:
        connection.recv(1)
    except OSError as error:
        assert errno.errorcode[error.errno] == expected, error
    else:
        raise AssertionError("no error")
    print("ok")


def shown(call, *arguments):
    """The result of a call, or its error."""
    try:
        result = call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done" if result is None else str(result)


def events_of(connection, timeout_ms):
    poll = select.poll()
    poll.register(connection, select.POLLIN | select.POLLOUT | select.POLLRDHUP)
    return poll.poll(timeout_ms)[0][1]


def deferring(address, port):
    where = (address, int(port))
    # One that brings the cookie, one that is given up, one that waits for as long as it likes.
    for turn in ["asks", "leaves", "waits", "waits"]:
        connection = socket.socket(family_of(address))
        connection.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1)
        if turn == "asks":
            connection.connect(where)
        else:
            connection.setblocking(False)
            print("connect:", shown(connection.connect, where))
            print("events:", events_of(connection, 0))
            print("again:", shown(connection.connect, where))
            print("name:", shown(connection.getpeername))
            print("recv:", shown(connection.recv, 1))
            print("error:", connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        if turn == "leaves":
            connection.close()
            continue
        if turn == "waits":
            time.sleep(0.05)
            # More than a SYN takes.
            parts = [b"x" * 300, b"y" * 4000]
            print("sent some:", 300 < connection.sendmsg(parts) < 4300)
            events_of(connection, 20_000)
            print("connect:", shown(connection.connect, where))
            print("connect:", shown(connection.connect, where))
            print("name:", shown(connection.getpeername) != "ENOTCONN")
        connection.setblocking(True)
        connection.send(b"rest")
        connection.shutdown(socket.SHUT_WR)
        print("syn data:", connection.recv(1))
        connection.close()
    print("ok")


def leaving(address, port, way, length, how):
    connection, taken = begin(address, port, wanted(int(length)), way)
    assert taken == int(length), taken
    # The remote has answered by then. Before, the kernel gives the connection up, too.
    time.sleep(0.3)
    print("ok", flush=True)
    if how == "closes":
        connection.close()
    os._exit(0)


def exchange(address, port):
    connection = socket.socket(family_of(address))
    sent = connection.sendto(REQUEST, socket.MSG_FASTOPEN, (address, int(port)))
    assert sent == len(REQUEST), sent
    got = b""
    while more := connection.recv(4096):
        got += more
    assert got == REQUEST, got
    syn_data = has_syn_data(connection)
    connection.close()
    return syn_data


def client(address, port, expected):
    for word in expected.split():
        got = exchange(address, port)
        assert word in ("-", str(got)), (got, expected)
    print("ok")


if __name__ == "__main__":
    roles = [server, client, telling, asking, failing, deferring, leaving]
    {role.__name__: role for role in roles}[sys.argv[1]](*sys.argv[2:])
