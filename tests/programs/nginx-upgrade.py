"""Puts a new nginx in the place of one that serves: PID-FILE PORT"""

import hashlib
import http.client
import os
import signal
import sys
import time

pid_file, port = sys.argv[1:]


def get(connection, size):
    connection.request("GET", f"/{size}")
    return hashlib.md5(connection.getresponse().read()).hexdigest()


def pid():
    with open(pid_file) as file:
        return int(file.read())


def wait(condition):
    while not condition():
        time.sleep(0.02)


def upgrade():
    old = pid()
    os.kill(old, signal.SIGUSR2)
    wait(lambda: os.path.exists(pid_file + ".oldbin") and os.path.exists(pid_file))
    os.kill(old, signal.SIGWINCH)
    time.sleep(0.3)
    os.kill(old, signal.SIGQUIT)
    time.sleep(0.3)
    os.kill(pid(), signal.SIGHUP)
    time.sleep(0.3)


# A download that is read on only after the upgrade.
slow = http.client.HTTPConnection("127.0.0.1", port)
for _ in range(30):
    get(slow, 1000)
slow.request("GET", "/12345678")
answer = slow.getresponse()
content = hashlib.md5(answer.read(1_000_000))
upgrade()
content.update(answer.read())
print(content.hexdigest())
slow.close()
wait(lambda: not os.path.exists(pid_file + ".oldbin"))
