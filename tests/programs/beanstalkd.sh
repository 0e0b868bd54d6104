# what: beanstalkd: 20,000 jobs put and taken
# needs: beanstalkd:beanstalkd /usr/bin/python3:python3

server() {
    exec beanstalkd -l 127.0.0.1 -p "$PORT"
}

client() {
    /usr/bin/python3 - "$PORT" <<'END'
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
lines = connection.makefile("rwb")
def ask(text):
    lines.write(text)
    lines.flush()
    return lines.readline()
for job in range(20000):
    body = b"%d " % job + b"x" * (job % 500)
    assert ask(b"put 0 0 60 %d\r\n%s\r\n" % (len(body), body)).startswith(b"INSERTED")
for job in range(20000):
    _, number, size = ask(b"reserve\r\n").split()
    body = lines.read(int(size) + 2)[:-2]
    assert body == b"%d " % job + b"x" * (job % 500), body
    assert ask(b"delete %s\r\n" % number) == b"DELETED\r\n"
print("every job came back")
END
}
