"""Short connections between two processes, in every way that they can begin and end.

    express.py SCENARIO

Says what a program sees. On the kernel and on carriers that are used again, the same must come out.
The last line tells how many of the client's connections had a port that an earlier one had.
"""

import array
import ctypes
import errno
import fcntl
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time

HOST = "127.0.0.1"
WAIT_MAX = 20
LIBC = ctypes.CDLL(None, use_errno=True)


def say(*words):
    print(*words, flush=True)


class Steps:
    """Keeps two processes in step."""

    def __init__(self):
        self.ours, self.theirs = socket.socketpair()

    def swap(self):
        self.ours, self.theirs = self.theirs, self.ours
        return self

    def tell(self, number=0):
        self.ours.sendall(struct.pack("!I", number))

    def hear(self):
        self.ours.settimeout(WAIT_MAX)
        return struct.unpack("!I", self.ours.recv(4, socket.MSG_WAITALL))[0]


class Server:
    """A listener in an instance of epoll."""

    def __init__(self, listener=None, backlog=64):
        if listener is None:
            listener = socket.create_server((HOST, 0), backlog=backlog)
        listener.setblocking(False)
        self.listener = listener
        self.port = listener.getsockname()[1]
        self.epoll = None

    def begin(self):
        self.epoll = select.epoll()
        self.epoll.register(self.listener.fileno(), select.EPOLLIN)
        return self

    def accept(self):
        until = time.monotonic() + WAIT_MAX
        while time.monotonic() < until:
            self.epoll.poll(WAIT_MAX)
            try:
                one, name = self.listener.accept()
            except BlockingIOError:
                continue
            assert one.getpeername() == name
            assert one.getsockname()[1] == self.port
            one.settimeout(WAIT_MAX)
            return one
        raise AssertionError("nobody came")

    def warm(self, count=6):
        """Serves connections, so that there are carriers."""
        for _ in range(count):
            one = self.accept()
            one.sendall(read_all(one, 5))
            assert one.recv(1) == b""
            one.close()

    def stop(self):
        self.listener.close()
        self.epoll.close()


NAMES = []


def connect(port):
    one = socket.socket()
    one.settimeout(WAIT_MAX)
    one.setblocking(True)
    one.connect((HOST, port))
    assert one.getpeername() == (HOST, port)
    assert one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    NAMES.append(one.getsockname())
    return one


def warm(port, count=6):
    for _ in range(count):
        one = connect(port)
        one.sendall(b"hello")
        assert read_all(one, 5) == b"hello"
        one.close()
        # Lets the server close, too.
        time.sleep(0.01)


def read_all(one, count):
    got = b""
    while len(got) < count:
        more = one.recv(count - len(got))
        if not more:
            break
        got += more
    return got


def outcome(call):
    try:
        return call()
    except OSError as error:
        return errno.errorcode.get(error.errno, error)


def call(function, *arguments):
    """Calls one of libc's functions."""
    if function(*arguments) != 0:
        raise OSError(ctypes.get_errno(), "")
    return 0


def bytes_of(number, count):
    return bytes((number + n) & 255 for n in range(min(count, 256))) * (count // 256 + 1)


def play(serve, ask, server=None):
    """Runs `serve` and `ask` in a process each."""
    server = server or Server()
    steps = Steps()
    child = os.fork()
    if child == 0:
        server.begin()
        serve(server, steps.swap())
        sys.stdout.flush()
        os._exit(0)
    server.listener.close()
    ask(server.port, steps)
    _, status = os.waitpid(child, 0)
    say("server", os.waitstatus_to_exitcode(status))
    print("reused", len(NAMES) - len(set(NAMES)))


# Many connections, one after another, and either end closes first.


def many(count=300):
    def serve(server, steps):
        for number in range(count):
            one = server.accept()
            size = struct.unpack("!I", read_all(one, 4))[0]
            data = read_all(one, size)
            one.sendall(data)
            if number % 2:
                one.close()
            else:
                assert one.recv(1) == b""
                one.close()
            steps.tell()

    def ask(port, steps):
        for number in range(count):
            one = connect(port)
            size = number * 37 % 9000
            data = bytes_of(number, size)[:size]
            one.sendall(struct.pack("!I", size) + data)
            assert read_all(one, size) == data, number
            if number % 2:
                assert one.recv(1) == b"", number
            one.close()
            steps.hear()
        say("asked", count)

    play(serve, ask)


# Many at a time, by epoll at both ends: the client closes first, the server does, or both do.

CLIENT_CLOSES, SERVER_CLOSES, BOTH_CLOSE = range(3)


class Echo:
    """One connection of the crowd's server."""

    def __init__(self, one):
        self.one, self.got, self.left = one, b"", b""

    def whole(self):
        return len(self.got) >= 8 and len(self.got) >= 8 + struct.unpack("!I", self.got[:4])[0]

    def who_closes(self):
        return struct.unpack("!I", self.got[4:8])[0] % 3


def crowd(count=2000, width=32):
    def serve(server, steps):
        ones = {}
        served = 0
        while served < count:
            for number, events in server.epoll.poll(WAIT_MAX):
                if number == server.listener.fileno():
                    try:
                        one, _ = server.listener.accept()
                    except BlockingIOError:
                        continue
                    one.setblocking(False)
                    ones[one.fileno()] = Echo(one)
                    server.epoll.register(one.fileno(), select.EPOLLIN)
                    continue
                echo = ones[number]
                ends = False
                if events & ~select.EPOLLOUT:
                    more = outcome(lambda: echo.one.recv(65536))
                    ends = more in (b"", "ECONNRESET", "EPIPE")
                    if isinstance(more, bytes) and more:
                        echo.got += more
                        echo.left = echo.got if echo.whole() else b""
                if echo.left and not ends:
                    sent = outcome(lambda: echo.one.send(echo.left))
                    echo.left = echo.left[sent:] if isinstance(sent, int) else echo.left
                    if echo.left:
                        server.epoll.modify(number, select.EPOLLIN | select.EPOLLOUT)
                    else:
                        server.epoll.modify(number, select.EPOLLIN)
                        ends = echo.who_closes() != CLIENT_CLOSES
                if ends:
                    echo.one.close()
                    del ones[number]
                    served += 1

    def ask(port, steps):
        epoll = select.epoll()
        ones = {}
        begun = done = 0

        def begin():
            nonlocal begun
            one = socket.socket()
            one.setblocking(False)
            assert one.connect_ex((HOST, port)) == errno.EINPROGRESS
            size = [0, 1, 10, 500, 3000, 9000][begun % 6]
            data = struct.pack("!II", size, begun) + bytes_of(begun, size)[:size]
            ones[one.fileno()] = [one, data, data, b""]
            epoll.register(one.fileno(), select.EPOLLIN | select.EPOLLOUT)
            begun += 1

        while done < count:
            while begun < count and len(ones) < width:
                begin()
            ready = epoll.poll(WAIT_MAX)
            assert ready, ("stuck", done)
            for number, events in ready:
                this = ones[number]
                one, data, left, got = this
                if events & select.EPOLLOUT and left:
                    if left == data:
                        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
                        NAMES.append(one.getsockname())
                    this[2] = left[one.send(left) :]
                    if not this[2]:
                        epoll.modify(number, select.EPOLLIN)
                elif events & ~select.EPOLLOUT:
                    more = one.recv(65536)
                    got += more
                    this[3] = got
                    assert data.startswith(got), "bytes"
                    assert more or got == data, "an early end"
                    who = struct.unpack("!I", data[4:8])[0] % 3
                    if not more or got == data and who != SERVER_CLOSES:
                        one.close()
                        del ones[number]
                        done += 1
        say("asked", done)

    play(serve, ask)


# The ways to end.


def endings():
    def serve(server, steps):
        server.warm()
        # A reset on purpose.
        one = server.accept()
        read_all(one, 5)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()
        steps.tell()
        server.warm()
        # Bytes left unread.
        one = server.accept()
        steps.hear()
        one.close()
        steps.tell()
        server.warm()
        # Half a close of the client's.
        one = server.accept()
        say("server read", read_all(one, 100))
        one.sendall(b"after your end")
        one.close()
        steps.hear()
        server.warm()
        # The client sends to a socket that is closed.
        one = server.accept()
        one.close()
        steps.tell()
        steps.hear()
        server.warm()
        # Closed before it is accepted.
        one = server.accept()
        say("server read", read_all(one, 100))
        one.close()
        server.warm()

    def ask(port, steps):
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        warm(port)
        one = connect(port)
        one.sendall(b"hello")
        steps.hear()
        time.sleep(0.05)
        say("reset", outcome(lambda: one.recv(10)), outcome(lambda: one.recv(10)))
        one.close()
        warm(port)
        one = connect(port)
        one.sendall(b"left unread")
        time.sleep(0.05)
        steps.tell()
        steps.hear()
        time.sleep(0.05)
        say("unread", outcome(lambda: one.recv(10)))
        one.close()
        warm(port)
        one = connect(port)
        one.sendall(b"to the end")
        one.shutdown(socket.SHUT_WR)
        say("half", read_all(one, 100))
        one.close()
        steps.tell()
        warm(port)
        one = connect(port)
        steps.hear()
        time.sleep(0.05)
        say("closed", outcome(lambda: one.recv(10)))
        say("closed", outcome(lambda: one.send(b"one")))
        time.sleep(0.05)
        say("closed", outcome(lambda: one.send(b"two")), outcome(lambda: one.recv(10)))
        one.close()
        steps.tell()
        warm(port)
        one = connect(port)
        one.sendall(b"and gone")
        one.close()
        warm(port)

    play(serve, ask)


# A sleeper hears of the end.


def sleepers():
    def serve(server, steps):
        server.warm()
        for _ in range(3):
            one = server.accept()
            time.sleep(0.1)
            one.close()
            steps.hear()
        server.warm()

    def ask(port, steps):
        warm(port)
        one = connect(port)
        say("recv", one.recv(10))
        one.close()
        steps.tell()
        one = connect(port)
        poll = select.poll()
        poll.register(one, select.POLLIN | select.POLLRDHUP)
        say("poll", [events for _, events in poll.poll(WAIT_MAX * 1000)])
        one.close()
        steps.tell()
        one = connect(port)
        epoll = select.epoll()
        epoll.register(one, select.EPOLLIN | select.EPOLLET | select.EPOLLRDHUP)
        say("epoll", [events for _, events in epoll.poll(WAIT_MAX)])
        one.close()
        steps.tell()
        warm(port)

    play(serve, ask)


# Both ends have shut their sending halves.


def hang_ups():
    seen, tell_seen = os.pipe()

    def serve(server, steps):
        server.warm()
        for _ in range(12):
            one = server.accept()
            one.sendall(read_all(one, 5))
            steps.hear()
            one.close()
            steps.tell()
            # The library has nothing to do meanwhile.
            os.read(seen, 1)
        server.warm()

    def ask(port, steps):
        warm(port)
        for number in range(12):
            one = connect(port)
            poll, epoll = select.poll(), select.epoll()
            poll.register(one, 0)
            epoll.register(one, select.EPOLLIN | select.EPOLLET)
            one.sendall(b"hello")
            read_all(one, 5)
            if number % 2:
                one.shutdown(socket.SHUT_WR)
            steps.tell()
            steps.hear()
            if number % 3 == 0:
                say("end", one.recv(1))
            if number % 2 == 0:
                one.shutdown(socket.SHUT_WR)
            say("poll", [events for _, events in poll.poll(WAIT_MAX * 1000)])
            say("epoll", [events for _, events in epoll.poll(WAIT_MAX)])
            say("recv", outcome(lambda: one.recv(1)))
            say("name", outcome(lambda: one.getpeername()))
            say("shutdown", [outcome(lambda: one.shutdown(how)) for how in range(3)])
            say("nonsense", outcome(lambda: one.shutdown(17)))
            os.write(tell_seen, b"x")
            one.close()
        warm(port)

    play(serve, ask)


# Nobody listens any more.


def refused():
    def serve(server, steps):
        server.warm()
        # One waits when the listener closes.
        steps.tell()
        steps.hear()
        server.stop()
        steps.tell()
        steps.hear()

    def ask(port, steps):
        warm(port)
        steps.hear()
        one = connect(port)
        one.sendall(b"hello")
        steps.tell()
        steps.hear()
        say("waited", outcome(lambda: one.recv(10)))
        one.close()
        say("refused", outcome(lambda: connect(port)))
        steps.tell()

    play(serve, ask)


# Others have the listener, too: what one process has not accepted is another's.


def disconnect(one):
    """`connect` to AF_UNSPEC."""
    return call(LIBC.connect, one.fileno(), bytes(16), 16)


def shut():
    """A listener that was told to listen no more."""
    ways = {
        "reading": lambda one: one.shutdown(socket.SHUT_RD),
        "both": lambda one: one.shutdown(socket.SHUT_RDWR),
        "unspecified": disconnect,
        "writing": lambda one: one.shutdown(socket.SHUT_WR),
    }
    for name, way in ways.items():

        def serve(server, steps):
            server.warm()
            outcome(lambda: way(server.listener))
            steps.tell()
            if name == "writing":
                server.warm()
            steps.hear()
            server.stop()

        def ask(port, steps):
            warm(port)
            steps.hear()
            if name == "writing":
                warm(port)
            else:
                for _ in range(3):
                    say(name, outcome(lambda: connect(port)))
            steps.tell()

        play(serve, ask)


# Options that a client sets before it knows that nobody has accepted its connection.
LATE = {
    "SO_RCVTIMEO": (socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 7, 500000)),
    "SO_SNDTIMEO": (socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 9, 0)),
    "SO_RCVLOWAT": (socket.SOL_SOCKET, socket.SO_RCVLOWAT, struct.pack("i", 3)),
    "TCP_CORK": (socket.IPPROTO_TCP, socket.TCP_CORK, struct.pack("i", 1)),
    "TCP_NOTSENT_LOWAT": (socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, struct.pack("i", 70000)),
    "IP_TTL": (socket.IPPROTO_IP, socket.IP_TTL, struct.pack("i", 33)),
}


def workers(end, options=()):
    def run():
        server = Server()
        first, second = Steps(), Steps()
        children = []
        for steps in (first, second):
            child = os.fork()
            if child == 0:
                steps.swap()
                steps.hear()
                server.begin()
                if steps is first:
                    server.warm()
                    steps.tell()
                    steps.hear()
                    if end == "closes":
                        server.stop()
                        steps.tell()
                    if end == "leaves":
                        server.epoll.unregister(server.listener.fileno())
                        steps.tell()
                        server.epoll.poll(WAIT_MAX)
                    signal.pause()
                one = server.accept()
                say("second read", read_all(one, 5))
                one.sendall(b"world")
                say("second read", one.recv(1))
                one.close()
                server.warm()
                os._exit(0)
            children.append(child)
        server.listener.close()
        first.tell()
        warm(server.port)
        first.hear()
        one = connect(server.port)
        for name in options:
            one.setsockopt(*LATE[name])
        one.sendall(b"hello")
        if end == "dies":
            os.kill(children[0], signal.SIGKILL)
        else:
            first.tell()
            first.hear()
        second.tell()
        say("client read", read_all(one, 5))
        for name in options:
            level, number, value = LATE[name]
            say(name, one.getsockopt(level, number, len(value)) == value)
        one.close()
        warm(server.port)
        os.kill(children[0], signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)
        print("reused", len(NAMES) - len(set(NAMES)))

    return run


def elsewhere():
    """A program waits for its listener in a second way, which it has begun before the first."""

    def edges(listener):
        epoll = select.epoll()
        epoll.register(listener.fileno(), select.EPOLLIN | select.EPOLLET)
        return epoll, listener

    def duplicate(listener):
        other = listener.dup()
        epoll = select.epoll()
        epoll.register(other.fileno(), select.EPOLLIN)
        return epoll, other

    def serve_first(server, steps):
        server.warm()
        server.stop()

    play(serve_first, lambda port, _: warm(port))
    for begin in edges, duplicate:
        server = Server()

        def serve(server, steps):
            # Begun anew: `play` has begun the first way.
            server.epoll.close()
            server.listener.listen(64)
            epoll, listener = begin(server.listener)
            server.begin().warm()
            epoll.poll(0)
            steps.tell()
            say(begin.__name__, len(epoll.poll(WAIT_MAX)))
            one, _ = listener.accept()
            one.settimeout(WAIT_MAX)
            one.sendall(read_all(one, 5))
            server.stop()

        def ask(port, steps):
            warm(port)
            steps.hear()
            warm(port, 1)

        play(serve, ask, server)


# Two processes with a listener each, of one group: what is left of it has all connections.


def group():
    def serve(server, steps):
        server.begin().epoll.register(steps.ours.fileno(), select.EPOLLIN)
        while True:
            for fd, _ in server.epoll.poll(WAIT_MAX):
                if fd == steps.ours.fileno():
                    steps.hear()
                    server.stop()
                    steps.tell()
                    signal.pause()
                try:
                    one, _ = server.listener.accept()
                except BlockingIOError:
                    continue
                one.settimeout(WAIT_MAX)
                one.sendall(read_all(one, 5))
                assert one.recv(1) == b""
                one.close()

    def member(port):
        return Server(socket.create_server((HOST, port), reuse_port=True))

    first = member(0)
    servers = (first, member(first.port))
    steps = (Steps(), Steps())
    children = []
    for own, other, its in (servers + steps[:1], servers[::-1] + steps[1:]):
        child = os.fork()
        if child == 0:
            other.listener.close()
            serve(own, its.swap())
        children.append(child)
    for server in servers:
        server.listener.close()
    warm(first.port, 40)
    say("of two")
    steps[0].tell()
    steps[0].hear()
    warm(first.port, 40)
    say("of one")
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    say("of none", outcome(lambda: connect(first.port)))
    print("reused", len(NAMES) - len(set(NAMES)))


# More than the server has accepted so far.


def backlog():
    count = 40

    def serve(server, steps):
        server.warm(12)
        steps.tell()
        steps.hear()
        for _ in range(count):
            one = server.accept()
            one.sendall(read_all(one, 5))
            one.close()

    def ask(port, steps):
        warm(port, 12)
        steps.hear()
        ones = [connect(port) for _ in range(count)]
        for one in ones:
            one.sendall(b"hello")
        steps.tell()
        say("all", all(read_all(one, 5) == b"hello" for one in ones))

    play(serve, ask)


# No numbers are left.


def numbers():
    def serve(server, steps):
        server.warm(12)
        steps.hear()

    def ask(port, steps):
        warm(port, 12)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        files = []
        try:
            while True:
                files.append(socket.socket())
        except OSError as error:
            say("full", errno.errorcode[error.errno], len(files) > 40)
        for file in files:
            file.close()
        steps.tell()

    play(serve, ask)


# The descriptor goes to others.


def passing():
    def serve(server, steps):
        server.warm()
        one = server.accept()
        read_all(one, 5)
        # To a program without the library.
        child = os.fork()
        if child == 0:
            os.environ.pop("LD_PRELOAD", None)
            os.dup2(one.fileno(), 1, inheritable=True)
            os.execvp("echo", ["echo", "from another program"])
        os.waitpid(child, 0)
        one.close()
        server.listener.close()
        steps.hear()

    def ask(port, steps):
        warm(port)
        one = connect(port)
        one.sendall(b"hello")
        say("read", read_all(one, 100))
        one.close()
        # By a control message, to a process that reads it.
        steps.tell()

    play(serve, ask)


def rights():
    def serve(server, steps):
        server.warm()
        one = server.accept()
        say("server read", read_all(one, 5))
        steps.tell()
        say("server read", read_all(one, 5))
        one.close()
        steps.hear()

    def ask(port, steps):
        warm(port)
        one = connect(port)
        one.sendall(b"hello")
        steps.hear()
        ours, theirs = socket.socketpair()
        child = os.fork()
        if child == 0:
            _, controls, _, _ = theirs.recvmsg(1, socket.CMSG_SPACE(4))
            number = array.array("i", controls[0][2])[0]
            os.write(number, b"world")
            os._exit(0)
        ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [one.fileno()]))])
        one.close()
        os.waitpid(child, 0)
        steps.tell()

    play(serve, ask)


# A process dies.


def client_dies():
    def serve(server, steps):
        server.warm()
        steps.tell()
        steps.hear()
        time.sleep(0.1)
        one = server.accept()
        say("server read", read_all(one, 5))
        say("server read", one.recv(1))
        one.close()
        steps.tell()
        server.warm()

    def ask(port, steps):
        steps_of_death = Steps()
        child = os.fork()
        if child == 0:
            warm(port)
            steps.hear()
            one = connect(port)
            one.sendall(b"hello")
            steps_of_death.swap().tell()
            signal.pause()
        steps_of_death.hear()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        steps.tell()
        steps.hear()
        warm(port)

    play(serve, ask)


# A server is killed while it waits for connections, and its clients have closed all that they made.
# Another one without SO_REUSEADDR begins at its port at once.


def killed():
    listener = socket.socket()
    listener.bind((HOST, 0))
    listener.listen(64)
    server = Server(listener)
    child = os.fork()
    if child == 0:
        server.begin()
        server.warm()
        server.epoll.poll(WAIT_MAX)
        os._exit(1)
    listener.close()
    warm(server.port)
    await_sleep(child)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    say("bind", outcome(lambda: socket.socket().bind((HOST, server.port))))
    print("reused", len(NAMES) - len(set(NAMES)))


def await_sleep(process):
    """Waits until a process has slept for a while."""
    looks = 0
    while looks < 5:
        time.sleep(0.005)
        with open(f"/proc/{process}/stat") as stat:
            looks = looks + 1 if stat.read().rsplit(")", 1)[1].split()[0] == "S" else 0


# The server forks while carriers are parked.


def forks():
    def serve(server, steps):
        server.warm()
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        steps.tell()
        server.warm()

    def ask(port, steps):
        warm(port)
        steps.hear()
        warm(port)

    play(serve, ask)


# What a socket is before it is connected: of which network, and whose.


NEW_NETWORK = 0x40000000
NO_NEW_PRIVILEGES = 38


def network_of(one):
    """The inode of a socket's network namespace (SIOCGSKNS), where this kernel and user may ask."""
    namespace = fcntl.ioctl(one.fileno(), 0x894C)
    inode = os.fstat(namespace).st_ino
    os.close(namespace)
    return inode


def networks(rounds=3):
    """A socket is of the network namespace that its thread had when it was made."""

    def serve(server, steps):
        server.warm(20)
        server.warm(rounds)
        server.stop()

    def ask(port, steps):
        warm(port, 20)
        own = os.open("/proc/self/ns/net", os.O_RDONLY)
        left = outcome(lambda: call(LIBC.unshare, NEW_NETWORK))
        if left != 0:
            print(f"skipped: unshare says {left}", file=sys.stderr)
            return warm(port, rounds)
        others = []
        for _ in range(rounds):
            one = socket.socket()
            other = os.stat("/proc/thread-self/ns/net").st_ino
            say("is of its thread", network_of(one) == other)
            say("connect", outcome(lambda: one.connect((HOST, port))))
            others.append(socket.socket())
        say("back", outcome(lambda: call(LIBC.setns, own, NEW_NETWORK)))
        for other in others:
            say("connect from afar", outcome(lambda: other.connect((HOST, port))))
        warm(port, rounds)

    play(serve, ask)


def restricted(rounds=3):
    """What a program has forbidden itself is not done for it (landlock(7))."""

    def serve(server, steps):
        server.warm(20)
        steps.hear()
        server.stop()

    def ask(port, steps):
        warm(port, 20)
        create, restrict, of_tcp = 444, 446, 4
        # struct landlock_ruleset_attr: no rights to files are handled, and that to connect is.
        ruleset = struct.pack("QQ", 0, 1 << 1)
        if LIBC.syscall(create, None, 0, 1) < of_tcp:
            print("skipped: no Landlock for TCP", file=sys.stderr)
            return steps.tell()
        rules = LIBC.syscall(create, ruleset, len(ruleset), 0)
        LIBC.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        say("restrict", outcome(lambda: call(LIBC.syscall, restrict, rules, 0)))
        for _ in range(rounds):
            say("connect", outcome(lambda: socket.socket().connect((HOST, port))))
        steps.tell()

    play(serve, ask)


def users(rounds=3):
    """A socket is of the user who made it."""
    nobody = 65534

    def serve(server, steps):
        server.warm(20 + 2 * rounds)
        server.stop()

    def ask(port, steps):
        warm(port, 20)
        before = [socket.socket() for _ in range(rounds)]
        if os.geteuid() == 0:
            os.setresuid(nobody, nobody, nobody)
        else:
            print("skipped: only root may become another user", file=sys.stderr)
        user = os.geteuid()
        for n in range(rounds):
            for one in before[n], socket.socket():
                whose = os.fstat(one.fileno()).st_uid
                one.connect((HOST, port))
                NAMES.append(one.getsockname())
                is_kept = os.fstat(one.fileno()).st_uid == whose
                say("keeps its user", is_kept, "is of ours", whose == user)
                one.sendall(b"hello")
                assert read_all(one, 5) == b"hello"
                one.close()

    play(serve, ask)


def late_options():
    """Options of the listener are those of the connections that come later."""
    wanted = [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY),
        (socket.IPPROTO_TCP, 18),  # TCP_USER_TIMEOUT
    ]

    def serve(server, steps):
        server.warm()
        for level, name in wanted:
            server.listener.setsockopt(level, name, 1)
            steps.tell()
            one = server.accept()
            say(level, name, [one.getsockopt(*option) for option in wanted])
            one.sendall(read_all(one, 5))
            one.close()
            server.warm()
        server.stop()

    def ask(port, steps):
        warm(port)
        for _ in wanted:
            steps.hear()
            warm(port, 1)
            warm(port)

    play(serve, ask)


def no_address(one):
    """`connect` to what is too short for a family of addresses, or too long for any address."""
    for length in [0, 1, 129]:
        say(length, outcome(lambda: call(LIBC.connect, one.fileno(), bytes(length), length)))


def told_once(rounds=6):
    """`connect` without blocking, again after it has succeeded, and with a length that is none."""

    def serve(server, steps):
        for _ in range(rounds):
            server.warm(2)
        server.stop()

    def ask(port, steps):
        for _ in range(rounds):
            one = socket.socket()
            one.setblocking(False)
            said = [one.connect_ex((HOST, port))]
            select.select([], [one], [], WAIT_MAX)
            no_address(one)
            said += [one.connect_ex((HOST, port)) for _ in range(3)]
            no_address(one)
            say([errno.errorcode.get(number, number) for number in said])
            NAMES.append(one.getsockname())
            one.setblocking(True)
            one.sendall(b"hello")
            assert read_all(one, 5) == b"hello"
            one.close()
            warm(port, 1)

    play(serve, ask)


def inherited(rounds=3):
    """A program that a child executes has a socket that is connected afterwards."""

    def serve(server, steps):
        for _ in range(rounds):
            server.warm(10)
            one = server.accept()
            say("got", sorted(read_all(one, 100).split()))
            one.close()
        server.stop()

    def ask(port, steps):
        for _ in range(rounds):
            one = socket.socket()
            one.set_inheritable(True)
            script = f"read line; echo child >&{one.fileno()}"
            # By `vfork`: with a path it would be `posix_spawn`.
            command = ["sh", "-c", script]
            child = subprocess.Popen(command, stdin=subprocess.PIPE, close_fds=False)
            warm(port, 10)
            one.connect((HOST, port))
            NAMES.append(one.getsockname())
            one.sendall(b"parent\n")
            one.close()
            child.communicate(b"\n")
            assert child.returncode == 0

    play(serve, ask)


# A listener that leaves its instance and comes back: nginx does so with every 16th connection when
# its workers share the listener (EPOLLEXCLUSIVE). No event belongs to the removal.


def returns():
    def serve(server, steps):
        server.warm()
        server.epoll.unregister(server.listener.fileno())
        events = select.EPOLLIN | select.EPOLLEXCLUSIVE
        server.epoll.register(server.listener.fileno(), events)
        steps.tell()
        server.warm(2)

    def ask(port, steps):
        warm(port)
        steps.hear()
        before = set(NAMES)
        warm(port, 2)
        # Counted are the connections after the return alone.
        NAMES[:] = list(before) + NAMES[-2:]

    play(serve, ask)


# A listener that is away from its instance for a moment, as nginx's is after 16 connections.


def pauses(rounds=3):
    begun, connected = os.pipe(), os.pipe()

    def serve(server, steps):
        server.warm()
        for _ in range(rounds):
            server.epoll.unregister(server.listener.fileno())
            os.write(begun[1], b"a")
            # Not a wait that the library sees.
            os.read(connected[0], 1)
            server.epoll.register(server.listener.fileno(), select.EPOLLIN)
            server.warm(1)

    def ask(port, steps):
        warm(port)
        before = set(NAMES)
        for _ in range(rounds):
            os.read(begun[0], 1)
            one = connect(port)
            one.sendall(b"hello")
            os.write(connected[1], b"a")
            say("client read", read_all(one, 5))
            one.close()
            time.sleep(0.01)
        # Counted are the connections of the pauses alone.
        NAMES[:] = list(before) + NAMES[-rounds:]

    play(serve, ask)


# A send after the other end has closed is answered by a reset, which each call tells in its way. Of
# the last connection the other end's process is gone, too.


def late_sends():
    names = ["IN", "PRI", "OUT", "ERR", "HUP", "RDHUP"]

    def named(events):
        return "|".join(name for name in names if events & getattr(select, "POLL" + name))

    gone, lives = os.pipe()

    def serve(server, steps):
        server.warm()
        for _ in range(5):
            one = server.accept()
            read_all(one, 5)
            one.close()

    def ask(port, steps):
        os.close(lives)
        signals = []
        signal.signal(signal.SIGPIPE, lambda number, frame: signals.append(number))
        warm(port)
        for order in (
            ["error", "send"],
            ["send", "error"],
            # The program has not read the end.
            ["unread", "receive", "error", "receive"],
            # A send without bytes is not answered.
            ["empty", "send", "receive"],
            ["receive", "shut", "send"],
        ):
            one = connect(port)
            poll, edges = select.poll(), select.epoll()
            poll.register(one, select.POLLIN | select.POLLOUT | select.POLLRDHUP)
            watched = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
            edges.register(one, watched)
            one.sendall(b"hello")
            say("waits", [named(events & ~select.EPOLLOUT) for _, events in edges.poll(WAIT_MAX)])
            if "unread" not in order:
                say("end", read_all(one, 1))
            if "empty" in order:
                say("empty", outcome(lambda: one.send(b"")))
            say("before", [named(events) for _, events in poll.poll(0)])
            edges.poll(0)
            if "shut" in order:
                os.read(gone, 1)
            say("sent", outcome(lambda: one.send(b"x")))
            say("after", [named(events) for _, events in poll.poll(0)])
            say("edge", [named(events) for _, events in edges.poll(1)])
            for what in order:
                calls = {
                    "error": lambda: one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR),
                    "send": lambda: one.send(b"x"),
                    "empty": lambda: one.send(b""),
                    "unread": lambda: one.recv(1, socket.MSG_PEEK),
                    "receive": lambda: one.recv(1),
                    "shut": lambda: one.shutdown(socket.SHUT_RDWR),
                }
                say(what, outcome(calls[what]), signals)
                say("then", [named(events) for _, events in poll.poll(0)])
            say("peer", outcome(one.getpeername))
            one.close()
            edges.close()

    play(serve, ask)


# For a look at the counts: both processes stay until they are killed.


def counted():
    def serve(server, steps):
        server.warm(20)
        steps.tell()
        time.sleep(WAIT_MAX)

    def ask(port, steps):
        warm(port, 20)
        steps.hear()
        say("played")
        time.sleep(WAIT_MAX)

    play(serve, ask)


# Sockets in whose place a carrier came are given out again: each is as new.

SO_COOKIE = 57


def cookie(one):
    return one.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8)


def looks(one):
    poll = select.poll()
    poll.register(one, select.POLLIN | select.POLLOUT | select.POLLRDHUP)
    options = [
        (socket.SOL_SOCKET, socket.SO_ERROR),
        (socket.SOL_SOCKET, socket.SO_TYPE),
        (socket.SOL_SOCKET, socket.SO_PROTOCOL),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        (socket.SOL_SOCKET, socket.SO_REUSEADDR),
        (socket.SOL_SOCKET, socket.SO_SNDBUF),
        (socket.SOL_SOCKET, socket.SO_RCVBUF),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY),
        (socket.IPPROTO_TCP, socket.TCP_INFO),
    ]
    return (
        one.getsockname(),
        [outcome(one.getpeername)],
        [one.getsockopt(*option) for option in options],
        [fcntl.fcntl(one, command) for command in (fcntl.F_GETFL, fcntl.F_GETFD, fcntl.F_GETOWN)],
        [event for _, event in poll.poll(0)],
    )


def leave(_):
    pass


def register(one):
    # Until the end of the process.
    EPOLLS.append(select.epoll())
    EPOLLS[-1].register(one.fileno(), select.EPOLLIN)


def register_and_remove(one):
    register(one)
    EPOLLS.pop().unregister(one.fileno())


EPOLLS = []
TREATMENTS = [
    leave,
    lambda one: one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    lambda one: one.setblocking(False),
    lambda one: one.set_inheritable(True),
    lambda one: one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    lambda one: fcntl.fcntl(one, fcntl.F_SETOWN, os.getpid()),
    lambda one: outcome(lambda: one.connect((HOST, 1))),
    register_and_remove,
    register,
]


def begun(one, port):
    one.settimeout(WAIT_MAX)
    one.setblocking(True)
    one.connect((HOST, port))
    one.sendall(b"hello")
    assert read_all(one, 5) == b"hello"
    NAMES.append(one.getsockname())
    one.close()
    time.sleep(0.001)


def spares(rounds=20, count=10):
    per_round = len(TREATMENTS) + 1

    def serve(server, steps):
        server.warm(count + rounds * per_round + 2 * count + 1)
        steps.tell()

    def ask(port, steps):
        warm(port, count)
        seen, again, cookies = set(), 0, set()
        for _ in range(rounds):
            for treat in [*TREATMENTS, leave]:
                one = socket.socket()
                seen.add(repr(looks(one)))
                again += cookie(one) in cookies
                cookies.add(cookie(one))
                treat(one)
                begun(one, port)
        say("as new", *sorted(seen))
        # A child has this one, too: it is the one to speak.
        one = socket.socket()
        shared = cookie(one)
        told = Steps()
        child = os.fork()
        if child == 0:
            told.swap().hear()
            one.settimeout(WAIT_MAX)
            one.sendall(b"hello")
            os._exit(int(read_all(one, 5) != b"hello"))
        warm(port, count)
        one.connect((HOST, port))
        told.tell()
        say("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        one.close()
        for _ in range(count):
            one = socket.socket()
            assert cookie(one) != shared
            begun(one, port)
        steps.hear()
        if "E2E_EXPRESS" in os.environ:
            assert again > rounds, f"{again} sockets came again"

    play(serve, ask)


# Both ends set what Redis and Go set on each connection; each connection begins without it.

KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 7),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]


def keepalive(count=60):
    def begins_as(one):
        return str([one.getsockopt(level, name) for level, name, _ in KEEPALIVE])

    def set_all(one):
        for option in KEEPALIVE:
            one.setsockopt(*option)

    def serve(server, steps):
        seen = set()
        for number in range(count):
            one = server.accept()
            seen.add(begins_as(one))
            if number % 3 != 1:
                set_all(one)
            assert read_all(one, 5) == b"hello"
            one.sendall(b"hello")
            assert one.recv(1) == b""
            one.close()
        say("accepted ones begin as", *sorted(seen))
        steps.tell()

    def ask(port, steps):
        seen = set()
        for number in range(count):
            one = connect(port)
            seen.add(begins_as(one))
            if number % 3 != 2:
                set_all(one)
            one.sendall(b"hello")
            assert read_all(one, 5) == b"hello"
            one.close()
            time.sleep(0.005)
        steps.hear()
        say("connected ones begin as", *sorted(seen))

    play(serve, ask)


# A client sets keepalive before it connects, as curl does, and each time another value.


def kept(is_always, count=80):
    def begins_as(one):
        return [one.getsockopt(level, name) for level, name, _ in KEEPALIVE]

    def serve(server, steps):
        server.warm(count)

    def ask(port, steps):
        for number in range(count):
            one = socket.socket()
            wanted = begins_as(one)
            if is_always or number % 2:
                wanted = [1, 60 + number, 7, 3]
                for (level, name, _), value in zip(KEEPALIVE, wanted):
                    one.setsockopt(level, name, value)
            one.setblocking(True)
            one.connect((HOST, port))
            assert begins_as(one) == wanted, (begins_as(one), wanted)
            NAMES.append(one.getsockname())
            one.sendall(b"hello")
            assert read_all(one, 5) == b"hello"
            one.close()
            time.sleep(0.005)
        say("kept")

    play(serve, ask)


# A large connection makes its ring grow; the next one on its carrier begins with a small one.


def sizes(count=60, large=1 << 20):
    def serve(server, steps):
        for number in range(count):
            one = server.accept()
            size = large if number % 3 == 2 else 5
            assert read_all(one, size) == b"x" * size
            one.sendall(b"y" * size)
            assert one.recv(1) == b""
            one.close()
        say("served")

    def ask(port, steps):
        for number in range(count):
            one = connect(port)
            size = large if number % 3 == 2 else 5
            one.sendall(b"x" * size)
            assert read_all(one, size) == b"y" * size
            one.close()
            time.sleep(0.01)

    play(serve, ask)


# A descriptor keeps its flags, however they were set before its socket connects.

FIOCLEX, FIONCLEX, FIONBIO = 0x5451, 0x5450, 0x5421
CLOSE_RANGE_CLOEXEC = 4
GET = [fcntl.F_GETFD, fcntl.F_GETFL]

FLAGS = [
    lambda one: fcntl.ioctl(one, FIOCLEX),
    lambda one: fcntl.ioctl(one, FIONCLEX),
    lambda one: fcntl.fcntl(one, fcntl.F_SETFD, fcntl.FD_CLOEXEC),
    lambda one: fcntl.fcntl(one, fcntl.F_SETFD, 0),
    lambda one: ctypes.CDLL(None).close_range(one.fileno(), one.fileno(), CLOSE_RANGE_CLOEXEC),
    lambda one: fcntl.ioctl(one, FIONBIO, struct.pack("i", 1)),
    lambda one: fcntl.ioctl(one, FIONBIO, struct.pack("i", 0)),
]


def flags(rounds=20, count=20):
    def serve(server, steps):
        server.warm(count + 2 * rounds * len(FLAGS))

    def ask(port, steps):
        warm(port, count)
        seen = set()
        for _ in range(rounds):
            for kind in (0, socket.SOCK_CLOEXEC):
                for number, change in enumerate(FLAGS):
                    one = socket.socket(socket.AF_INET, socket.SOCK_STREAM | kind)
                    fcntl.fcntl(one, fcntl.F_SETFD, fcntl.FD_CLOEXEC if kind else 0)
                    change(one)
                    error = one.connect_ex((HOST, port))
                    assert error in (0, errno.EINPROGRESS), error
                    seen.add(repr((kind != 0, number, [fcntl.fcntl(one, name) for name in GET])))
                    one.settimeout(WAIT_MAX)
                    one.sendall(b"hello")
                    assert read_all(one, 5) == b"hello"
                    one.close()
                    time.sleep(0.002)
        say("flags", *sorted(seen))

    play(serve, ask)


# A listener that is asked when nobody waits, in either mode.


def nobody(rounds=3):
    def serve(server, steps):
        server.warm(60)
        for _ in range(rounds):
            one = server.accept()
            say("nobody", outcome(server.listener.accept))
            server.listener.setblocking(True)
            steps.tell()
            another, _ = server.listener.accept()
            server.listener.setblocking(False)
            say("got", another.recv(5), one.recv(5))
            another.close()
            one.close()
            steps.tell()
        server.warm()

    def ask(port, steps):
        warm(port, 60)
        for _ in range(rounds):
            one = connect(port)
            one.sendall(b"first")
            steps.hear()
            time.sleep(0.05)
            another = connect(port)
            another.sendall(b"other")
            steps.hear()
            one.close()
            another.close()
        warm(port)

    play(serve, ask)


# The server sleeps before each connection, and finds all that it reads.


def most_unread(port):
    """The most bytes that a connection of the listener at `port` has for the kernel's `recv`."""
    most = 0
    with open("/proc/net/tcp") as table:
        for words in map(str.split, table.readlines()[1:]):
            is_connected = words[3] == "01"
            if is_connected and words[1].endswith(":%04X" % port):
                most = max(most, int(words[4].split(":")[1], 16))
    return most


def unread(count=100):
    def serve(server, steps):
        server.warm()
        for _ in range(count):
            one = server.accept()
            one.setblocking(True)
            steps.hear()
            assert read_all(one, 6) == b"hello"
            one.close()
            steps.tell()
        # Few are left on a carrier, or the kernel would keep the next one back.
        say("few are unread", most_unread(server.port) < 10)

    def ask(port, steps):
        warm(port)
        for _ in range(count):
            one = connect(port)
            one.sendall(b"hello")
            one.close()
            steps.tell()
            steps.hear()
            time.sleep(0.001)

    play(serve, ask)


# Rules come and go while connections are made.


def ruled():
    def serve(server, steps):
        while True:
            server.warm(1)

    def ask(port, steps):
        while True:
            warm(port, 20)
            say("asked")

    play(serve, ask)


SCENARIOS = {
    "many": many,
    "crowd": crowd,
    "endings": endings,
    "sleepers": sleepers,
    "hang_ups": hang_ups,
    "refused": refused,
    "shut": shut,
    "worker_closes": workers("closes"),
    "worker_dies": workers("dies"),
    "worker_dies_late": workers("dies", LATE),
    "worker_leaves": workers("leaves"),
    "elsewhere": elsewhere,
    "group": group,
    "backlog": backlog,
    "numbers": numbers,
    "passing": passing,
    "rights": rights,
    "client_dies": client_dies,
    "killed": killed,
    "forks": forks,
    "networks": networks,
    "late_options": late_options,
    "told_once": told_once,
    "restricted": restricted,
    "users": users,
    "inherited": inherited,
    "returns": returns,
    "pauses": pauses,
    "late_sends": late_sends,
    "spares": spares,
    "keepalive": keepalive,
    "kept": lambda: kept(True),
    "kept_at_times": lambda: kept(False),
    "sizes": sizes,
    "flags": flags,
    "nobody": nobody,
    "unread": unread,
    "counted": counted,
    "ruled": ruled,
}

if __name__ == "__main__":
    if sys.argv[1] == "list":
        print(*SCENARIOS)
    else:
        SCENARIOS[sys.argv[1]]()
