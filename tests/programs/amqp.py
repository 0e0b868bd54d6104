"""Publishes and takes messages by AMQP, and sums what came: amqp.py PORT"""

import hashlib
import sys
import time

import pika

SIZES = [1, 100, 10_000, 1_000_000]
COUNTS = [2000, 2000, 500, 30]


def connected(port):
    """The server listens a moment before it answers."""
    for _ in range(100):
        try:
            return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
        except pika.exceptions.AMQPError:
            time.sleep(0.2)
    raise SystemExit("no answer")


connection = connected(int(sys.argv[1]))
channel = connection.channel()
channel.confirm_delivery()
channel.queue_declare("all", exclusive=True)
channel.basic_qos(prefetch_count=100)
for size, count in zip(SIZES, COUNTS):
    for number in range(count):
        body = (b"%d\n" % number * (size // 2 + 1))[:size]
        channel.basic_publish("", "all", body)
    total = hashlib.sha256()
    taken = 0
    for method, _, body in channel.consume("all", inactivity_timeout=30):
        if method is None:
            break
        total.update(body)
        channel.basic_ack(method.delivery_tag)
        taken += 1
        if taken == count:
            break
    channel.cancel()
    print(size, taken, total.hexdigest())
connection.close()
