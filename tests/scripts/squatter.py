"""A listener's address goes from one program to another while a client connects to it all the time.

    squatter.py squat           has it first; at SIGUSR1 it closes the listener in a way that nobody
                                hears of, and goes on to accept whatever comes to its carriers
    squatter.py own PORT        has it next
    squatter.py ask PORT        connects; after SIGUSR1 it says how often it met whom, and ends

Each answers with its role.
"""

import collections
import ctypes
import mmap
import os
import select
import signal
import socket
import sys
import time

HOST = "127.0.0.1"
ASKED_MAX = 100


def say(*words):
    print(*words, flush=True)


def past_libc():
    """`dup2` as three instructions: mov eax, 33; syscall; ret."""
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(b"\xb8\x21\0\0\0\x0f\x05\xc3")
    call = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_int, ctypes.c_int)
    return page, call(ctypes.addressof(ctypes.c_char.from_buffer(page)))


def answer(one, role):
    one.settimeout(20)
    if one.recv(5):
        one.sendall(role)
        one.recv(1)
    one.close()


def squat():
    listener = socket.create_server((HOST, 0))
    listener.setblocking(False)
    epoll = select.epoll()
    epoll.register(listener.fileno(), select.EPOLLIN)
    nothing = os.open(os.devnull, os.O_RDONLY)
    page, dup2 = past_libc()

    def close(*_):
        dup2(nothing, listener.fileno())
        say("closed")

    signal.signal(signal.SIGUSR1, close)
    say("port", listener.getsockname()[1])
    while True:
        epoll.poll()
        try:
            one, _ = listener.accept()
        except OSError:
            continue
        try:
            answer(one, b"squat")
        except OSError:
            pass


def own(port):
    # A connection of the other one's may be about to end.
    listener = socket.create_server((HOST, int(port)), reuse_port=False)
    say("listens")
    while True:
        one, _ = listener.accept()
        try:
            answer(one, b"owner")
        except OSError:
            pass


def ask(port):
    is_told = []
    signal.signal(signal.SIGUSR1, lambda *_: is_told.append(True))
    met = collections.Counter()
    while sum(met.values()) < ASKED_MAX:
        begun_after = bool(is_told)
        if begun_after and not met:
            time.sleep(0.01)
        one = socket.socket()
        try:
            one.settimeout(20)
            one.setblocking(True)
            one.connect((HOST, int(port)))
            one.sendall(b"hello")
            whom = one.recv(5)
        except ConnectionError as error:
            whom = type(error).__name__.encode()
        one.close()
        if begun_after:
            met[whom.decode()] += 1
    say(*(f"{whom}={count}" for whom, count in sorted(met.items())))


if __name__ == "__main__":
    {"squat": squat, "own": own, "ask": ask}[sys.argv[1]](*sys.argv[2:])
