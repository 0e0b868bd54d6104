"""Gives transfers up in their middle, as RFC 959 has it: with an interrupt and an urgent synch signal."""

import ftplib
import hashlib
import socket
import sys

ftp = ftplib.FTP()
ftp.connect("127.0.0.1", int(sys.argv[1]), 60)
print(ftp.login())
for _ in range(60):
    ftp.voidcmd("NOOP")
for passive in (True, False):
    ftp.set_pasv(passive)
    for _ in range(3):
        data = ftp.transfercmd("RETR 12345678")
        got = 0
        while got < 200_000:
            got += len(data.recv(65536))
        ftp.sock.sendall(b"\xff\xf4")
        ftp.sock.send(b"\xff\xf2", socket.MSG_OOB)
        ftp.sock.sendall(b"ABOR\r\n")
        while data.recv(65536):
            pass
        data.close()
        print([ftp.getmultiline()[:3] for _ in range(2)], ftp.voidcmd("NOOP"))
    sum = hashlib.md5()
    ftp.retrbinary("RETR 12345678", sum.update)
    print(sum.hexdigest(), len(ftp.nlst()))
print(ftp.quit())
