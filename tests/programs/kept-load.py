"""Fetches a file over connections that it keeps, until the file `loaded` is gone: PORT"""

import hashlib
import http.client
import os
import sys

# A worker that leaves closes connections that are kept, maybe with a request on its way.
CLOSED = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)

answers = set()
while os.path.exists("loaded"):
    connection = http.client.HTTPConnection("127.0.0.1", sys.argv[1])
    try:
        for _ in range(60):
            connection.request("GET", "/65536")
            answer = connection.getresponse()
            answers.add((answer.status, hashlib.md5(answer.read()).hexdigest()))
    except CLOSED:
        pass
    connection.close()
# In one piece: others write there, too.
sys.stdout.write(f"{answers}\n")
