"""Answers `/items/N` with what the database has for N."""
import threading

import psycopg2

# One connection to the database for each thread.
own = threading.local()


def app(environ, start_response):
    if not hasattr(own, "connection"):
        own.connection = psycopg2.connect("host=127.0.0.1 dbname=app user=app")
        own.connection.autocommit = True
    number = int(environ["PATH_INFO"].removeprefix("/items/"))
    with own.connection.cursor() as cursor:
        cursor.execute("SELECT body FROM items WHERE id = %s", (number,))
        body = cursor.fetchone()[0].encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
