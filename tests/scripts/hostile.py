"""A program on the engine's host interface that means no good. It runs under the library, and uses what the library has made."""

import ctypes
import os
import random
import signal
import socket
import struct
import sys
import time


def shared_mappings():
    """Everything this process shares with the adapter and may write."""
    found = []
    for line in open("/proc/self/maps"):
        fields = line.split()
        if len(fields) > 5 and "memfd:toehold" in fields[5] and fields[1] == "rw-s":
            start, end = (int(part, 16) for part in fields[0].split("-"))
            found.append((fields[5], start, end))
    return found


def exchange(sock, rounds):
    for _ in range(rounds):
        sock.sendall(b"z" * 100)
        got = b""
        while len(got) < 100:
            part = sock.recv(100 - len(got))
            assert part
            got += part


def scribble(host, port, seconds):
    """Rewrites words of regions and ready bitmaps, while its connections are in use."""
    end = time.monotonic() + float(seconds)
    random.seed(7)
    spoilt = 0
    while time.monotonic() < end:
        # The child may trip over its own doing; that is its business.
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            try:
                socks = [socket.create_connection((host, int(port)), timeout=2) for _ in range(4)]
                for sock in socks:
                    exchange(sock, 60)
                regions = [one for one in shared_mappings() if "table" not in one[0]]
                assert regions, "no channel"
                print("spoiling", flush=True)
                for _ in range(300):
                    for _ in range(20):
                        _, start, finish = random.choice(regions)
                        # Mostly the control page, where the words are.
                        span = 4096 if random.random() < 0.9 else finish - start
                        at = start + random.randrange(0, span // 8) * 8
                        value = random.choice([0, 1, 2, 3, 1 << 31, 1 << 40, random.getrandbits(64)])
                        ctypes.c_uint64.from_address(at).value = value
                    for sock in socks:
                        try:
                            sock.send(b"z" * 50, socket.MSG_DONTWAIT)
                        except OSError:
                            pass
            except OSError:
                pass
            os._exit(0)
        _, status = os.waitpid(child, 0)
        spoilt += 1
    print("families", spoilt)


def adapter_sockets():
    """The library's own connection to the adapter."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink("/proc/self/fd/" + name).startswith("socket:"):
                sock = socket.socket(fileno=os.dup(int(name)))
                if sock.family == socket.AF_UNIX and sock.type & socket.SOCK_SEQPACKET == socket.SOCK_SEQPACKET:
                    found.append(sock)
        except OSError:
            pass
    return found


def garbage(host, port, count):
    """Sends requests that make no sense, over the connection by which it said hello."""
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        exchange(sock, 5)
    [adapter, *_] = adapter_sockets()
    random.seed(11)
    sent = 0
    # Version and magic are those of the library's own table.
    [(_, start, _), *_] = [one for one in shared_mappings() if "table" in one[0]]
    version = ctypes.c_uint32.from_address(start + 8).value
    for _ in range(int(count)):
        kind = random.choice([2, 3, 14, 14, 14, 15])
        words = [random.choice([0, 1, 80, random.getrandbits(32)]) for _ in range(5)]
        ip = lambda: random.choice(
            [bytes(16), b"\0" * 10 + b"\xff\xff" + bytes([127, 0, 0, 1]), random.randbytes(16)]
        )
        message = struct.pack("=4sII5I3Q", b"TOEH", version, kind, *words, *(random.getrandbits(64) for _ in range(3)))
        message += ip() + ip() + struct.pack("=HHI", random.getrandbits(16), random.getrandbits(16), 0)
        assert len(message) == 96, len(message)
        try:
            adapter.send(message, socket.MSG_DONTWAIT)
            sent += 1
            if sent == 1:
                print("sending", flush=True)
        except BlockingIOError:
            time.sleep(0.001)
        except OSError:
            break
    print("sent", sent, flush=True)


def relay_port():
    """The only socket that listens on 127.0.0.1 in this namespace is the relay."""
    for line in open("/proc/net/tcp"):
        fields = line.split()
        if len(fields) > 3 and fields[3] == "0A" and fields[1].startswith("0100007F:"):
            return int(fields[1].split(":")[1], 16)
    raise AssertionError("no relay")


PREAMBLE_BYTES = 56


def preamble(version, remote, port, guess):
    """The connect preamble of a carrier, with a token that is guessed."""
    return struct.pack("=4sI16s16sHH12x", b"TOEO", version, guess, remote, port, 0)


def preambles(host, port, count):
    """Says all kinds of things to the relay: none of them may lead anywhere."""
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        exchange(sock, 5)
    [(_, start, _), *_] = [one for one in shared_mappings() if "table" in one[0]]
    version = ctypes.c_uint32.from_address(start + 8).value
    relay = ("127.0.0.1", relay_port())
    remote = bytes(10) + b"\xff\xff" + socket.inet_aton(host)
    random.seed(13)
    print("speaking", flush=True)
    held, said = [], 0
    for number in range(int(count)):
        guess = random.choice([bytes(16), b"\xff" * 16, random.randbytes(16)])
        words = preamble(version, remote, int(port), guess)
        if number % 4 == 1:
            words = words[: random.randrange(PREAMBLE_BYTES)]
        elif number % 4 == 2:
            words = random.randbytes(random.randrange(1, 4000))
        # Past the library, as a program without it would.
        sock = socket.socket()
        sock.settimeout(20)
        sock.connect(relay)
        sock.sendall(words)
        said += 1
        if len(words) < PREAMBLE_BYTES:
            held.append(sock)
            if len(held) >= 200:
                held.pop(0).close()
            continue
        try:
            assert sock.recv(1) == b"", "an answer"
        except ConnectionResetError:
            pass
        sock.close()
    print("said", said, flush=True)


def flood(seconds):
    """Connects to the relay, as often as it can, and never says what for."""
    port = relay_port()
    end = time.monotonic() + float(seconds)
    held, made = [], 0
    while time.monotonic() < end:
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", port))
        held.append(sock)
        made += 1
        if made == 800:
            print("flooding", flush=True)
        if len(held) >= 800:
            held.pop(0).close()
    print("made", made)


def greedy(host, port, count):
    """Sends and sends, and never reads what comes back."""
    socks = []
    for _ in range(int(count)):
        sock = socket.create_connection((host, int(port)), timeout=30)
        sock.setblocking(False)
        socks.append(sock)
    print("greedy", flush=True)
    while True:
        for sock in socks:
            try:
                sock.send(b"g" * 65536)
            except OSError:
                time.sleep(0.001)


if __name__ == "__main__":
    signal.alarm(90)
    globals()[sys.argv[1]](*sys.argv[2:])
    print("ok", flush=True)
