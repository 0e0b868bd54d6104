"""Ends of TCP connections for the offload tests, in plain Python: each role checks what it sees and says `ok`."""

import errno
import fcntl
import itertools
import os
import selectors
import select
import resource
import signal
import socket
import struct
import sys
import termios
import threading
import time

# Whoever does nothing for so many seconds, or is not ready by then, is ended by SIGALRM.
SILENCE_MAX = 90


# Multiplied with them, seeds stay different.
ODD = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93)


def pattern(count, seed):
    """`count` bytes that repeat nowhere near."""
    words = ((seed + 1) * odd % (1 << 64) for odd in ODD)
    block = struct.pack("<4Q", *words) * 128
    out = bytearray()
    number = 0
    while len(out) < count:
        out += struct.pack("<Q", number) + block[: 4096 - 8]
        number += 1
    return bytes(out[:count])


def read_all(sock):
    parts = []
    while True:
        part = sock.recv(1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)


def listener(port, host="0.0.0.0"):
    """A listener; one at an IPv6 address takes IPv6 only."""
    is_v6 = ":" in host
    sock = socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_v6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    sock.bind((host, port))
    assert sock.getsockname()[0] == host, sock.getsockname()
    assert port in (0, sock.getsockname()[1]), sock.getsockname()
    sock.listen(512)
    print("listening", flush=True)
    return sock


def echo_server(port, host="0.0.0.0"):
    """Echoes each connection to its end, then ends."""
    def serve(conn):
        with conn:
            while True:
                data = conn.recv(1 << 16)
                signal.alarm(SILENCE_MAX)
                if not data:
                    conn.shutdown(socket.SHUT_WR)
                    return
                conn.sendall(data)

    sock = listener(int(port), host)
    while True:
        conn, _ = sock.accept()
        threading.Thread(target=serve, args=(conn,), daemon=True).start()


def silent_server(port):
    """Accepts everybody, and reads nothing."""
    raise_descriptors()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("0.0.0.0", int(port)))
    sock.listen(4096)
    print("listening", flush=True)
    kept = []
    while True:
        kept.append(sock.accept()[0])


def deaf_server(port):
    """Listens, and accepts nobody."""
    kept = listener(int(port))
    while kept:
        signal.pause()


def second_listener(first, second, mark):
    """Listens at once, and again after SIGUSR1. Prints whether the file `mark` is there then."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    kept = [listener(int(first))]
    signal.sigwait([signal.SIGUSR1])
    kept.append(listener(int(second)))
    print("marked", os.path.exists(mark), flush=True)


def idle_reader(port, rounds, count):
    """Answers `rounds` messages, reads `count` bytes, and then reads nothing more."""
    conn, _ = listener(int(port)).accept()
    for _ in range(int(rounds)):
        conn.sendall(conn.recv(100, socket.MSG_WAITALL))
    left = int(count)
    while left > 0:
        left -= len(conn.recv(min(left, 1 << 16)))
    while conn:
        signal.pause()


def pusher(host, port, rounds="0", count="0"):
    """Sends to an idle reader until its window is closed. Prints the number of bytes that are
    acknowledged but not read."""
    sock = socket.create_connection((host, int(port)), timeout=30)
    for _ in range(int(rounds)):
        sock.sendall(b"x" * 100)
        assert sock.recv(100, socket.MSG_WAITALL) == b"x" * 100
    sock.sendall(bytes(int(count)))
    sock.setblocking(False)
    part = bytes(1 << 16)
    backoff = 0
    # Linux probes a closed window, each time after twice the last time.
    while backoff < 3:
        try:
            sock.send(part)
        except BlockingIOError:
            time.sleep(0.02)
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
        backoff = info[4]
    # The SYN counts as a byte here.
    acknowledged = struct.unpack_from("<Q", info, 120)[0] - 1
    print("unread", acknowledged - 100 * int(rounds) - int(count), flush=True)


def raise_descriptors():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def echo_client(host, port, count):
    """Sends a pattern, half-closes, and must read it all back, then the end."""
    data = pattern(int(count), 7)
    sock = socket.create_connection((host, int(port)), timeout=30)
    assert sock.getpeername()[:2] == (host, int(port)), sock.getpeername()
    back = []
    reader = threading.Thread(target=lambda: back.append(read_all(sock)))
    reader.start()
    sock.sendall(data)
    sock.shutdown(socket.SHUT_WR)
    reader.join()
    assert back[0] == data, "%d of %d bytes came back, or others" % (len(back[0]), len(data))
    print("local", sock.getsockname()[0])


def marked_client(host, port):
    """Connects with a mark, which the kernel's routes may ask for."""
    with socket.socket() as sock:
        sock.settimeout(30)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 7)
        sock.connect((host, int(port)))
        sock.sendall(b"marked")
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == b"marked"


def urgent_client(host, port):
    """Sends an urgent byte among others: it must be where it was sent."""
    # Before what is waited for can be seen from outside.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.settimeout(None)
        for _ in range(3):
            sock.sendall(b"before")
            sock.send(b"!", socket.MSG_OOB)
            sock.sendall(b"after")
            back = sock.recv(12, socket.MSG_WAITALL)
            assert back == b"before!after", back
        print("holding", flush=True)
        signal.sigwait([signal.SIGUSR1])


def names_server(port, host="0.0.0.0"):
    """Accepts one connection and says what it is told about its ends."""
    sock = listener(int(port), host)
    conn, peer = sock.accept()
    assert peer == conn.getpeername(), (peer, conn.getpeername())
    conn.sendall(b"hello")
    assert conn.recv(100) == b""
    print("peer", peer[0], peer[1], "local", *conn.getsockname()[:2])


def names_client(host, port):
    """Connects and says what it is told."""
    sock = socket.create_connection((host, int(port)), timeout=30)
    assert sock.recv(5, socket.MSG_WAITALL) == b"hello"
    print("peer", *sock.getpeername()[:2], "local", *sock.getsockname()[:2])


def from_address(source, source_port, host, port):
    """Connects from an address and port of its own choice, and must be told so."""
    with socket.create_connection((host, int(port)), 30, (source, int(source_port))) as sock:
        assert sock.getsockname()[0] == source, sock.getsockname()
        assert int(source_port) in (0, sock.getsockname()[1]), sock.getsockname()
        sock.sendall(b"from here")
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == b"from here"


def one_port(host, port, other_port, own, other_own, local_port):
    """Two connections from one local port, one of them from an address of its own choice: each must be told its own ends."""
    socks = [socket.socket(), socket.socket()]
    for sock in socks:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
    socks[0].bind(("0.0.0.0", int(local_port)))
    socks[1].bind((other_own, int(local_port)))
    for sock, to in zip(socks, (port, other_port)):
        # Perhaps the answer is there at once.
        got = sock.connect_ex((host, int(to)))
        assert got in (0, errno.EINPROGRESS), got
    assert socks[1].getsockname() == (other_own, int(local_port)), socks[1].getsockname()
    # Both are connected before either is asked about.
    time.sleep(0.5)
    poll = select.poll()
    for sock in socks:
        poll.register(sock, select.POLLOUT)
    while len(poll.poll(20000)) < 2:
        pass
    told = [(sock.getsockname(), sock.getpeername()) for sock in socks]
    ends = [(own, int(local_port)), (other_own, int(local_port))]
    peers = [(host, int(port)), (host, int(other_port))]
    assert told == list(zip(ends, peers)), told
    for sock in socks:
        sock.setblocking(True)
        sock.sendall(b"mine")
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == b"mine"


def fails(host, port, error):
    try:
        socket.create_connection((host, int(port)), timeout=30)
    except OSError as failed:
        assert failed.errno == error, failed
        return True
    return False


def until(holds):
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end, "in vain"
        time.sleep(0.01)


def at_quota(host, port, count):
    """Has as many connections as it may, and gets no more before it has closed some. Goes on when it is told to."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    connect = lambda: socket.create_connection((host, int(port)), timeout=30)
    socks = [connect() for _ in range(int(count))]
    for _ in range(3):
        assert fails(host, port, errno.EADDRNOTAVAIL), "one too many"
    sock = socket.socket()
    sock.setblocking(False)
    got = sock.connect_ex((host, int(port)))
    if got == errno.EINPROGRESS:
        assert select.select([], [sock], [], 20)[1], "no answer"
        got = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    assert got == errno.EADDRNOTAVAIL, got
    print("full", flush=True)
    signal.sigwait([signal.SIGUSR1])
    for sock in socks:
        exchange_end(sock)
    socks = []
    # They end at the remote's pace.
    until(lambda: not fails(host, port, errno.EADDRNOTAVAIL))
    until(lambda: take(socks, connect) and len(socks) == int(count))
    assert fails(host, port, errno.EADDRNOTAVAIL), "the same again"


def take(socks, connect):
    """One more connection, if there is one to be had."""
    try:
        socks.append(connect())
    except OSError as error:
        assert error.errno == errno.EADDRNOTAVAIL, error
        return False
    return True


def exchange_end(sock):
    """Something there and back, then the end both ways."""
    sock.sendall(b"still here")
    sock.shutdown(socket.SHUT_WR)
    assert read_all(sock) == b"still here"
    sock.close()


def fill(host, port, count):
    """Connects to a program until it is full: then connections are reset, and those there are go on."""
    connect = lambda: socket.create_connection((host, int(port)), timeout=30)
    socks = [connect() for _ in range(int(count))]
    for sock in socks:
        sock.sendall(b"1")
        assert sock.recv(1) == b"1"

    def is_reset():
        try:
            with connect() as sock:
                sock.sendall(b"1")
                return sock.recv(1) == b""
        except ConnectionResetError:
            return True

    for _ in range(3):
        assert is_reset(), "one too many"
    for sock in socks[1:]:
        exchange_end(sock)
    until(lambda: not is_reset())
    exchange_end(socks[0])


def no_port(source, host, port):
    """Bound to an address alone: the port is chosen when it connects, and told."""
    sock = socket.socket()
    sock.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
    sock.bind((source, 0))
    sock.connect((host, int(port)))
    own = sock.getsockname()
    assert own[0] == source and own[1] != 0, own
    sock.sendall(b"%d" % own[1])
    sock.shutdown(socket.SHUT_WR)
    assert int(read_all(sock)) == own[1]


def taken(port, host):
    """Another listener at the same place must be refused as the kernel refuses it."""
    try:
        listener(int(port), host)
        raise AssertionError("listens")
    except OSError as error:
        assert error.errno == errno.EADDRINUSE, error


def expect_error(host, port, name):
    """A blocking and a non-blocking connect must both fail with the error of this name."""
    want = getattr(errno, name)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family)
    try:
        sock.connect((host, int(port)))
        raise AssertionError("connected")
    except OSError as error:
        assert error.errno == want, error
    sock = socket.socket(family)
    sock.setblocking(False)
    got = sock.connect_ex((host, int(port)))
    if got == errno.EINPROGRESS:
        poll = select.epoll()
        poll.register(sock, select.EPOLLOUT)
        events = poll.poll(20)
        assert events, "no answer"
        got = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    assert got == want, errno.errorcode.get(got, got)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0


def connect_error(host, port, name):
    """A blocking connect must fail with the error of this name."""
    try:
        socket.create_connection((host, int(port)), timeout=None)
        raise AssertionError("connected")
    except OSError as error:
        assert error.errno == getattr(errno, name), error


def cancelled_connect(host, port):
    """A thread ends in a connect that nobody answers: its socket is what it was before."""
    import ctypes

    libc = ctypes.CDLL(None)
    sock = socket.socket()
    inline = lambda: sock.getsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE)
    address = struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", int(port), socket.inet_aton(host))
    thread = threading.Thread(target=libc.connect, args=(sock.fileno(), address, len(address)), daemon=True)
    assert inline() == 0
    thread.start()
    # So it waits for news of its carrier. A connect on the kernel never sets this.
    until(lambda: inline() == 1)
    assert libc.pthread_cancel(ctypes.c_ulong(thread.ident)) == 0
    until(lambda: not os.path.exists(f"/proc/self/task/{thread.native_id}"))
    assert inline() == 0, "the option is left"
    # Nobody may wait for a thread of Python's that libc has ended.
    print("ok", flush=True)
    os._exit(0)


def nonblocking(host, port):
    """Connects without blocking, and waits in each way there is."""
    ways = [selectors.EpollSelector, selectors.PollSelector, selectors.SelectSelector]
    for way in ways:
        for early in (False, True):
            sock = socket.socket()
            sock.setblocking(False)
            selector = way()
            if early:
                # Registered before there is a connection, as event loops do.
                result = sock.connect_ex((host, int(port)))
                selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
            else:
                result = sock.connect_ex((host, int(port)))
                selector.register(sock, selectors.EVENT_WRITE)
            assert result in (0, errno.EINPROGRESS), result
            begin = time.monotonic()
            while True:
                ready = selector.select(10)
                assert time.monotonic() - begin < 10, "never writable"
                if ready and ready[0][1] & selectors.EVENT_WRITE:
                    break
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
            assert sock.getpeername() == (host, int(port))
            sock.send(b"x" * 100)
            selector.modify(sock, selectors.EVENT_READ)
            got = b""
            while len(got) < 100:
                assert selector.select(10), "nothing came back"
                got += sock.recv(100)
            assert got == b"x" * 100
            sock.close()


def slow_connect(host, port):
    """Nobody answers: while that lasts the socket must not look connected."""
    sock = socket.socket()
    sock.setblocking(False)
    early, epoll, poll = select.epoll(), select.epoll(), select.poll()
    # Proxies register first and connect then.
    early.register(sock, select.EPOLLIN | select.EPOLLOUT)
    early.poll(0)
    assert sock.connect_ex((host, int(port))) == errno.EINPROGRESS
    assert early.poll(0.2) == []
    epoll.register(sock, select.EPOLLIN | select.EPOLLOUT)
    poll.register(sock, select.POLLIN | select.POLLOUT)
    assert epoll.poll(0.2) == [] and poll.poll(200) == []
    assert select.select([sock], [sock], [], 0.2) == ([], [], [])
    for call in (lambda: sock.send(b"x"), lambda: sock.recv(1)):
        try:
            call()
            raise AssertionError("moved bytes")
        except BlockingIOError:
            pass
    assert sock.connect_ex((host, int(port))) == errno.EALREADY
    try:
        sock.getpeername()
        raise AssertionError("has a peer")
    except OSError as error:
        assert error.errno == errno.ENOTCONN, error


def many(host, port, count):
    """Many short connections, one after the other, some at a time."""
    def some(number):
        for _ in range(number):
            with socket.create_connection((host, int(port)), timeout=30) as sock:
                sock.sendall(b"ping")
                sock.shutdown(socket.SHUT_WR)
                assert read_all(sock) == b"ping"

    threads = [threading.Thread(target=some, args=(int(count) // 10,)) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def many_until_reset(host, port):
    """Requests on ten connections, each of which must end with a reset, once it says something."""
    def answered(sock):
        left = 400
        while left:
            try:
                got = sock.recv(left)
            except TimeoutError:
                # Whoever only waits is told nothing by a kernel that knows nothing.
                sock.sendall(b"ping")
                continue
            assert got, "an end instead of a reset"
            left -= len(got)

    def ask():
        with socket.create_connection((host, int(port)), timeout=30) as sock:
            sock.settimeout(2)
            try:
                for answers in itertools.count(1):
                    sock.sendall(b"ping" * 100)
                    answered(sock)
                    if answers == 10:
                        started.release()
            except (ConnectionResetError, BrokenPipeError):
                resets.append(1)

    resets, started = [], threading.Semaphore(0)
    threads = [threading.Thread(target=ask) for _ in range(10)]
    for thread in threads:
        thread.start()
    for _ in threads:
        started.acquire()
    print("holding", flush=True)
    for thread in threads:
        thread.join()
    assert len(resets) == 10, "%d of 10 were reset" % len(resets)


def steady(host, port):
    """Echoes of large blocks, without a break, until SIGUSR1."""
    over = []
    signal.signal(signal.SIGUSR1, lambda *_: over.append(1))
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        block, blocks = pattern(1 << 16, 5), 0
        print("holding", flush=True)
        while not over:
            sock.sendall(block)
            left = len(block)
            while left:
                got = sock.recv(left)
                assert got == block[len(block) - left:][:len(got)] and got, "others, or an end"
                left -= len(got)
            blocks += 1
            signal.alarm(SILENCE_MAX)
        print("blocks", blocks)


def reset_server(port):
    """Answers each connection with a reset."""
    sock = listener(int(port))
    while True:
        conn, _ = sock.accept()
        conn.recv(1)
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        conn.close()


def reset_client(host, port):
    """A reset of the remote's must arrive as one."""
    sock = socket.create_connection((host, int(port)), timeout=30)
    sock.sendall(b"x")
    try:
        assert sock.recv(1) != b"", "an end instead of a reset"
        raise AssertionError("bytes instead of a reset")
    except ConnectionResetError:
        pass


def resetting_client(host, port):
    """Resets its own connection."""
    sock = socket.create_connection((host, int(port)), timeout=30)
    sock.sendall(b"x")
    time.sleep(0.2)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def reset_seen(port):
    """Accepts one connection, which must end in a reset."""
    sock = listener(int(port))
    conn, _ = sock.accept()
    try:
        while conn.recv(100):
            pass
        raise AssertionError("an end instead of a reset")
    except ConnectionResetError:
        pass


def impatient(sock):
    """Wants to hear of a silent remote within three seconds."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def given_up(sock, talks=False):
    """The remote falls silent, which must be told."""
    print("holding", flush=True)
    try:
        while talks:
            time.sleep(0.2)
            sock.send(b"y")
        assert sock.recv(1), "an end instead of an error"
        raise AssertionError("bytes instead of an error")
    except OSError as error:
        assert error.errno == errno.ETIMEDOUT, error
    # Once said, it is an end like any other, behind what came before.
    assert read_all(sock).strip(b"y") == b""


def impatient_client(host, port, when):
    """Sets its patience before or after it connects, or while its bytes go by rings; or how long data may stay unacknowledged."""
    sock = socket.socket()
    if when == "before":
        impatient(sock)
    sock.connect((host, int(port)))
    sock.sendall(b"x")
    assert sock.recv(1) == b"x"
    for _ in range(100 if when in ("rings", "asked") else 0):
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
    if when in ("after", "rings", "asked"):
        impatient(sock)
    if when == "asked":
        # The error may be asked for instead of met.
        print("holding", flush=True)
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        assert poll.poll()[0][1] & select.POLLERR
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ETIMEDOUT
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        assert sock.recv(1) == b""
        return
    if when == "data":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000)
    given_up(sock, when == "data")


def impatient_sender(host, port, by):
    """The remote has finished and falls silent. The first send says so, the second is a broken pipe."""
    sock = socket.create_connection((host, int(port)))
    sock.settimeout(None)
    impatient(sock)
    assert sock.recv(1) == b""
    pipes = []
    signal.signal(signal.SIGPIPE, lambda *_: pipes.append(1))
    read, write = os.pipe()
    os.write(write, b"data")
    file = open(os.memfd_create("data"), "w+b")
    file.write(b"data")
    file.flush()
    send = {
        "send": lambda: sock.send(b"data"),
        "splice": lambda: os.splice(read, sock.fileno(), 4),
        "sendfile": lambda: os.sendfile(sock.fileno(), file.fileno(), 0, 4),
    }[by]
    print("holding", flush=True)
    poll = select.poll()
    poll.register(sock, 0)
    assert poll.poll()[0][1] & select.POLLERR
    for error, signals in ((errno.ETIMEDOUT, []), (errno.EPIPE, [1])):
        try:
            send()
            raise AssertionError("sent")
        except OSError as seen:
            assert seen.errno == error, seen
        # The interpreter calls a handler when it comes to it.
        until(lambda: pipes == signals)


def finished_server(port):
    """Finishes what it accepts, and listens on."""
    sock = listener(int(port))
    kept = []
    while True:
        kept.append(sock.accept()[0])
        kept[-1].shutdown(socket.SHUT_WR)


def impatient_server(port):
    """Its listener's patience is that of what it accepts."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    impatient(sock)
    sock.bind(("0.0.0.0", int(port)))
    sock.listen(5)
    print("listening", flush=True)
    conn, _ = sock.accept()
    assert conn.recv(1) == b"x"
    given_up(conn)


def unacknowledged(host, port):
    """Asks how much of what it sent the remote has not acknowledged, which is told what to do."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    waiting = lambda: struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))[0]
    sock = socket.create_connection((host, int(port)), timeout=30)
    for _ in range(100):
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
    until(lambda: waiting() == 0)
    print("holding", flush=True)
    signal.sigwait([signal.SIGUSR1])
    sock.sendall(bytes(1000))
    assert waiting() == 1000, waiting()
    sock.sendall(bytes(500))
    assert waiting() == 1500, waiting()
    print("sent", flush=True)
    until(lambda: waiting() == 0)


def hold_open(port):
    """Accepts connections and never ends one."""
    sock = listener(int(port))
    kept = []
    while True:
        kept.append(sock.accept()[0])


def half_closed(host, port, seconds):
    """Finishes first and still hears what comes much later."""
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.sendall(b"x")
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b"x"
        time.sleep(float(seconds))
        assert sock.recv(1) == b"y"


def late_server(port, seconds):
    """Answers an end with something late."""
    sock = listener(int(port))
    conn, _ = sock.accept()
    assert read_all(conn) == b"x"
    conn.sendall(b"x")
    time.sleep(float(seconds))
    conn.sendall(b"y")
    conn.close()


def closing_client(host, port):
    """Closes, whatever the remote does."""
    socket.create_connection((host, int(port)), timeout=30).close()
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.sendall(b"x")


def outlive(host, port):
    """Holds a connection; when the adapter dies it must be reset within a second, and a new one must be the kernel's."""
    sock = socket.create_connection((host, int(port)), timeout=30)
    sock.sendall(b"x")
    assert sock.recv(1) == b"x"
    print("holding", flush=True)
    sock.settimeout(30)
    try:
        got = sock.recv(1)
        raise AssertionError("%r instead of a reset" % got)
    except ConnectionResetError:
        print("reset", time.time(), flush=True)
    # There is no other way to the far side than the engine: the kernel must say so, and at once.
    sock = socket.socket()
    try:
        sock.connect((host, int(port)))
        raise AssertionError("connected")
    except OSError as error:
        assert error.errno == errno.ENETUNREACH, error


def held(host, port, name):
    """Holds a connection, which must end with the error of this name."""
    sock = socket.create_connection((host, int(port)), timeout=30)
    sock.sendall(b"x")
    print("holding", flush=True)
    try:
        while sock.recv(100):
            pass
        raise AssertionError("an end instead of %s" % name)
    except OSError as error:
        assert error.errno == getattr(errno, name), error


def held_until_told(host, port):
    """Holds a connection, which must carry bytes and end well when SIGUSR1 comes."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    sock = socket.create_connection((host, int(port)), timeout=30)
    sock.sendall(b"x")
    assert sock.recv(1) == b"x"
    print("holding", flush=True)
    signal.sigwait({signal.SIGUSR1})
    exchange_end(sock)


def all_held(host, port, count, name):
    """Holds many connections, all of which must end with the error of this name."""
    socks = [socket.create_connection((host, int(port)), timeout=30) for _ in range(int(count))]
    for sock in socks:
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
    print("holding", flush=True)
    for sock in socks:
        try:
            assert sock.recv(100), "an end instead of %s" % name
            raise AssertionError("bytes instead of %s" % name)
        except OSError as error:
            assert error.errno == getattr(errno, name), error


def pausing(host, port, count, seconds):
    """Many connections, all of which say something, are silent, and go on."""
    socks = [socket.create_connection((host, int(port)), timeout=30) for _ in range(int(count))]

    def exchange(text):
        for number, sock in enumerate(socks):
            sock.sendall(text % number)
        for number, sock in enumerate(socks):
            want = text % number
            assert sock.recv(len(want), socket.MSG_WAITALL) == want

    exchange(b"before %6d")
    print("silent", flush=True)
    time.sleep(float(seconds))
    exchange(b"after %6d")
    for number, sock in enumerate(socks):
        data = pattern(100000, number)
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == data


def checksum(data):
    """RFC 1071."""
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def fragmented_syns(source, host, port, count):
    """Connection requests in two fragments each, in both orders; each must be answered."""
    out = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    seen = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
    seen.settimeout(30)
    ends = socket.inet_aton(source) + socket.inet_aton(host)
    ports = range(20000, 20000 + int(count))
    for number in ports:
        syn = struct.pack("!HHIIBBHHH", number, int(port), number, 0, 5 << 4, 2, 65535, 0, 0)
        sum_of = checksum(ends + struct.pack("!BBH", 0, 6, len(syn)) + syn)
        syn = syn[:16] + struct.pack("!H", sum_of) + syn[18:]
        pieces = [(syn[:8], 0x2000), (syn[8:], 1)]
        for piece, place in pieces if number % 2 else reversed(pieces):
            # The kernel fills in lengths and the header's checksum.
            header = struct.pack("!BBHHHBBH", 0x45, 0, 0, number, place, 64, 6, 0) + ends
            out.sendto(header + piece, (host, 0))
    answered = set()
    while len(answered) < len(ports):
        packet = seen.recv(200)
        there, here, _, ack, _, flags = struct.unpack("!HHIIBB", packet[20:34])
        if packet[12:20] == ends[4:] + ends[:4] and there == int(port) and flags == 0x12:
            assert ack == here + 1, (ack, here)
            answered.add(here)


def by_turns(host, port, count):
    """Connections that are all busy, then all idle, for ever; half of them only for three rounds."""
    socks = [socket.create_connection((host, int(port)), timeout=60) for _ in range(int(count))]
    for number in range(1 << 30):
        if number == 3:
            while len(socks) > int(count) // 2:
                socks.pop().close()
        for sock in socks:
            for _ in range(100):
                sock.sendall(b"y" * 100)
                assert sock.recv(100, socket.MSG_WAITALL) == b"y" * 100
        print("round", flush=True)
        time.sleep(4)


def backpressure_server(port):
    """Accepts one connection, does not read for a while, then reads everything."""
    import hashlib

    sock = listener(int(port))
    conn, _ = sock.accept()
    time.sleep(1)
    data = read_all(conn)
    print("digest", hashlib.sha256(data).hexdigest())


def backpressure_client(host, port, count):
    """Sends more than all buffers hold; must be slowed down, and lose nothing."""
    import hashlib

    data = pattern(int(count), 3)
    sock = socket.create_connection((host, int(port)), timeout=30)
    sock.setblocking(False)
    sent = 0
    begin = time.monotonic()
    while time.monotonic() - begin < 0.5:
        try:
            sent += sock.send(data[sent : sent + 65536])
        except BlockingIOError:
            time.sleep(0.02)
    assert sent < len(data), "nobody slowed us down"
    sock.setblocking(True)
    sock.sendall(data[sent:])
    sock.shutdown(socket.SHUT_WR)
    assert sock.recv(1) == b""
    print("digest", hashlib.sha256(data).hexdigest())


def forking_server(port, count):
    """Accepts in the parent, serves in a child, as many times."""
    sock = listener(int(port))
    for _ in range(int(count)):
        conn, peer = sock.accept()
        if os.fork() == 0:
            sock.close()
            assert conn.getpeername() == peer
            conn.sendall(read_all(conn))
            conn.close()
            os._exit(0)
        conn.close()
        os.wait()


# How a short connection goes: what the client sends first, and who ends it how.
SHORT_KINDS = (
    "client_first",  # the client closes after the answer
    "server_first",  # the server closes after the answer
    "half_close",  # the client has finished before the server answers
    "banner",  # the server speaks first
    "large",  # the answer is larger than a ring
    "large_request",
    "client_resets",  # after the answer
    "unread",  # the server closes without reading
    "gone",  # the client has closed before the server reads
    "silent",  # nothing is sent at all
)
SHORT_LARGE = 300_000


class Short:
    """A connection of `short_server`: a number and its kind come first, or nothing."""

    def __init__(self, sock, peer, is_lossy):
        self.sock, self.peer, self.is_lossy = sock, peer, is_lossy
        self.request = bytearray()
        self.answer = b""
        self.kind = None
        self.is_answered = False

    def wanted(self):
        return SHORT_LARGE if self.kind == "large_request" else 6

    def step(self):
        """False when it is over."""
        try:
            return self.try_step()
        except BlockingIOError:
            return True
        except OSError as error:
            # A connection that was reset has no peer any more.
            assert error.errno in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN), error
            may_be_reset = (None, "client_resets", "gone", "unread")
            assert self.is_lossy or self.kind in may_be_reset, self.kind
            return False

    def try_step(self):
        while not self.is_answered:
            data = self.sock.recv(1 << 16)
            self.request += data
            if self.kind is None and len(self.request) >= 6:
                self.kind = SHORT_KINDS[self.request[0]]
                if self.kind == "unread":
                    return False
            if self.kind is None and not data:
                assert not self.request
                return False
            is_whole = self.kind is not None and len(self.request) >= self.wanted()
            if self.kind in ("half_close", "gone"):
                is_whole = not data
            assert data or is_whole, (self.kind, len(self.request))
            if is_whole:
                self.respond()
        while self.answer:
            sent = self.sock.send(self.answer)
            self.answer = self.answer[sent:]
        if self.kind in ("client_first", "banner", "client_resets"):
            assert self.sock.recv(1) == b""
        return False

    def respond(self):
        self.is_answered = True
        seed = struct.unpack("<xBI", self.request[:6])[1]
        if self.kind == "large_request":
            assert bytes(self.request[6:]) == pattern(SHORT_LARGE - 6, seed)
        # Whoever has connected, by both calls that say so.
        assert self.sock.getpeername() == self.peer
        port = struct.pack("<H", self.peer[1])
        count = SHORT_LARGE if self.kind == "large" else 40
        self.answer = port + self.peer[0].encode() + pattern(count, seed)


def short_server(port, banner="", workers="1", user="", lossy=""):
    """Serves short connections of all kinds from one epoll instance, in each of its workers. With
    `lossy`, any may be reset."""
    sock = listener(int(port))
    sock.setblocking(False)
    for _ in range(int(workers) - 1):
        if os.fork() == 0:
            break
    if user:
        os.setgroups([])
        os.setuid(int(user))
    poll = select.epoll()
    poll.register(sock, select.EPOLLIN)
    conns = {}
    while True:
        for fd, _ in poll.poll():
            signal.alarm(SILENCE_MAX)
            if fd == sock.fileno():
                try:
                    conn, peer = sock.accept()
                except BlockingIOError:
                    continue
                conn.setblocking(False)
                if banner:
                    conn.send(banner.encode())
                conns[conn.fileno()] = Short(conn, peer, bool(lossy))
                poll.register(conn, select.EPOLLIN)
                fd = conn.fileno()
            short = conns.get(fd)
            if short is None:
                continue
            if short.step():
                wanted = select.EPOLLOUT if short.is_answered and short.answer else select.EPOLLIN
                poll.modify(fd, wanted)
            else:
                del conns[fd]
                poll.unregister(fd)
                short.sock.close()


def short_client(host, port, count, kinds="all", banner="", seed="1", blocks=""):
    """Makes short connections, one after the other, of these kinds in turns. With `blocks`, each
    call waits in the kernel; else the program waits in `poll`."""
    names = SHORT_KINDS if kinds == "all" else kinds.split(",")
    timeout = None if blocks else 30
    for number in range(int(count)):
        signal.alarm(SILENCE_MAX)
        kind = names[number % len(names)]
        one_short(host, int(port), kind, number + 1000 * int(seed), banner, timeout)


def short_crowd(host, port, count, at_once, options="", user=""):
    """Makes short connections, so many at once, from one epoll instance. The options: `early`,
    sockets are registered before they connect; `edge`, once and for all events; `lively` and
    `kept`, each has an option set before or after that. The first connection is made before the
    program becomes `user`."""
    poll, conns = select.epoll(), {}
    is_edge = "edge" in options
    wanted = select.EPOLLIN | select.EPOLLOUT | select.EPOLLET if is_edge else select.EPOLLOUT

    def begin(number):
        sock = socket.socket()
        sock.setblocking(False)
        if "lively" in options:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if "early" in options:
            poll.register(sock, wanted)
        error = sock.connect_ex((host, int(port)))
        assert error in (0, errno.EINPROGRESS), error
        if "early" not in options:
            poll.register(sock, wanted)
        conns[sock.fileno()] = [sock, number, b"", False]

    begun = 0
    while begun < int(count) or conns:
        signal.alarm(SILENCE_MAX)
        if user and begun == 1 and not conns:
            os.setgroups([])
            os.setuid(int(user))
            user = ""
        while begun < int(count) and len(conns) < (1 if user else int(at_once)):
            begin(begun)
            begun += 1
            if user:
                break
        for fd, events in poll.poll():
            conn = conns[fd]
            sock, number, answer, has_asked = conn
            if not has_asked:
                error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                assert error == 0, (number, error, events)
                assert sock.getpeername() == (host, int(port))
                if "kept" in options:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                kind = SHORT_KINDS.index("client_first")
                sock.sendall(struct.pack("<BBI", kind, 0, number))
                conn[3] = True
                if not is_edge:
                    poll.modify(fd, select.EPOLLIN)
                    continue
            try:
                part = sock.recv(1 << 16)
            except BlockingIOError:
                assert is_edge
                continue
            assert part, (number, answer)
            conn[2] = answer = answer + part
            own = sock.getsockname()
            name = own[0].encode()
            whole = struct.pack("<H", own[1]) + name + pattern(40, number)
            if len(answer) == len(whole):
                assert answer == whole, number
                poll.unregister(sock)
                sock.close()
                del conns[fd]


def short_forks(host, port, count):
    """Short connections that are under way when their program forks. Parent and child have each in
    turns, and the other waits."""
    for number in range(int(count)):
        signal.alarm(SILENCE_MAX)
        sock = socket.socket()
        sock.setblocking(False)
        error = sock.connect_ex((host, int(port)))
        assert error in (0, errno.EINPROGRESS), error
        child = os.fork() if number % 3 == 0 else None
        if child is None or (child == 0) == (number % 2 == 0):
            sock.settimeout(30)
            select.select([], [sock], [], 30)
            kind = SHORT_KINDS.index("client_first")
            sock.sendall(struct.pack("<BBI", kind, 0, number))
            own = sock.getsockname()
            whole = struct.pack("<H", own[1]) + own[0].encode() + pattern(40, number)
            answer = b""
            while len(answer) < len(whole):
                part = sock.recv(1 << 16)
                assert part, (number, answer)
                answer += part
            assert answer == whole, number
        if child == 0:
            os._exit(0)
        if child:
            assert os.waitpid(child, 0)[1] == 0
        sock.close()


def short_execs(host, port, count):
    """Short connections that are under way when a program executes another one: that has them."""
    for number in range(int(count)):
        signal.alarm(SILENCE_MAX)
        one_short(host, int(port), "client_first", number, "", 30)
        if number % 20:
            continue
        sock = socket.socket()
        sock.setblocking(False)
        sock.set_inheritable(True)
        error = sock.connect_ex((host, int(port)))
        assert error in (0, errno.EINPROGRESS), error
        child = os.fork()
        if child == 0:
            inherits = ["short_inherited", str(sock.fileno())]
            os.execv(sys.executable, [sys.executable, "-S", __file__] + inherits)
        assert os.waitpid(child, 0)[1] == 0
        sock.close()


def short_becomes(host, port, count, number="0"):
    """As `short_execs`, without a fork: the program itself becomes another one, so many times."""
    for early in range(40):
        signal.alarm(SILENCE_MAX)
        one_short(host, int(port), "client_first", early, "", 30)
    sock = socket.socket()
    sock.setblocking(False)
    sock.set_inheritable(True)
    error = sock.connect_ex((host, int(port)))
    assert error in (0, errno.EINPROGRESS), error
    rest = [str(sock.fileno()), host, port, str(int(count) - 1)]
    os.execv(sys.executable, [sys.executable, "-S", __file__, "short_inherited"] + rest)


def short_late(host, port, forks=""):
    """A short connection that begins after SIGUSR1 and goes on in another program. Prints whether
    it is on a used carrier."""
    signal.alarm(SILENCE_MAX)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    for early in range(40):
        one_short(host, int(port), "client_first", early, "", 30)
    sock = socket.socket()
    sock.setblocking(False)
    sock.set_inheritable(True)
    print("ready", flush=True)
    signal.sigwait([signal.SIGUSR1])
    number = os.fstat(sock.fileno()).st_ino
    error = sock.connect_ex((host, int(port)))
    assert error == errno.EINPROGRESS, error
    # Another socket has taken the place of the program's.
    is_used = os.fstat(sock.fileno()).st_ino != number
    print("used" if is_used else "new", flush=True)
    child = os.fork() if forks else 0
    if child == 0:
        inherits = ["short_inherited", str(sock.fileno())]
        os.execv(sys.executable, [sys.executable, "-S", __file__] + inherits)
    assert os.waitpid(child, 0)[1] == 0
    sock.close()


SHORT_NEAR = "10.84.0.2"


def short_inherited(fd, host="", port="", count="0"):
    print("inherited", flush=True)
    sock = socket.socket(fileno=int(fd))
    sock.settimeout(30)
    select.select([], [sock], [], 30)
    sock.sendall(struct.pack("<BBI", SHORT_KINDS.index("client_first"), 0, 7))
    # On a busy host the adapter may answer too late: then the connection is the kernel's to name.
    own, loopback = sock.getsockname(), "127.0.0.1"
    name = SHORT_NEAR if own[0] == loopback else own[0]
    answer = b""
    while len(answer) < 2 + len(name) + 40:
        part = sock.recv(1 << 16)
        assert part, answer
        answer += part
    assert answer[2:] == name.encode() + pattern(40, 7), (answer, own)
    assert own[0] == loopback or answer[:2] == struct.pack("<H", own[1]), (answer, own)
    sock.close()
    if int(count):
        short_becomes(host, port, count)


def short_refused(host, port, closed_port, count):
    """Short connections, and between them some to a port where nobody listens."""
    for number in range(int(count)):
        signal.alarm(SILENCE_MAX)
        one_short(host, int(port), "client_first", number, "", None if number % 2 else 30)
        sock = socket.socket()
        if number % 2:
            sock.settimeout(30)
        error = sock.connect_ex((host, int(closed_port)))
        assert error == errno.ECONNREFUSED, error
        if number % 3 == 0:
            # The socket is as new.
            sock.settimeout(30)
            sock.connect((host, int(port)))
        sock.close()


def short_until_refused(host, port):
    """Makes short connections until their server is gone: each is whole, reset, or refused."""
    for number in itertools.count():
        signal.alarm(SILENCE_MAX)
        if number == 300:
            print("going", flush=True)
        try:
            one_short(host, int(port), "client_first", number, "", None if number % 2 else 30)
        except (ConnectionResetError, BrokenPipeError):
            assert number >= 300, number
        except AssertionError as error:
            # The server was killed before it had answered.
            assert number >= 300 and error.args[0][2] == 0, error
        except ConnectionRefusedError:
            return print("refused", flush=True)


def short_until_lost(host, port, kinds):
    """Makes short connections until one fails: by an error, never by wrong bytes."""
    names = kinds.split(",")
    for number in itertools.count():
        signal.alarm(SILENCE_MAX)
        if number == 50:
            print("going", flush=True)
        try:
            # A busy host may take long, until the adapter is killed.
            timeout = 30 if number < 50 else 1
            one_short(host, int(port), names[number % len(names)], number, "", timeout)
        except OSError as error:
            return print("lost", error)


def one_short(host, port, kind, seed, banner, timeout=30):
    sock = socket.create_connection((host, port), timeout)
    own = sock.getsockname()
    if banner:
        said = b""
        while len(said) < len(banner):
            said += sock.recv(len(banner) - len(said))
        assert said == banner.encode(), said
    if kind == "silent":
        return sock.close()
    request = struct.pack("<BBI", SHORT_KINDS.index(kind), 0, seed)
    if kind == "large_request":
        request += pattern(SHORT_LARGE - 6, seed)
    try:
        sock.sendall(request)
        if kind == "half_close":
            sock.shutdown(socket.SHUT_WR)
        if kind == "gone":
            return sock.close()
        answer = b""
        count = SHORT_LARGE if kind == "large" else 40
        name = own[0].encode()
        whole = 2 + len(name) + count
        while len(answer) < whole:
            part = sock.recv(1 << 16)
            assert part or kind == "unread", (kind, seed, len(answer))
            if not part:
                return sock.close()
            answer += part
        assert answer == struct.pack("<H", own[1]) + name + pattern(count, seed), (kind, seed)
        if kind in ("server_first", "half_close", "large", "large_request"):
            assert sock.recv(1) == b""
        if kind == "client_resets":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except ConnectionResetError:
        if kind != "unread":
            raise
    sock.close()


if __name__ == "__main__":
    signal.alarm(SILENCE_MAX)
    globals()[sys.argv[1]](*sys.argv[2:])
    print("ok", flush=True)
