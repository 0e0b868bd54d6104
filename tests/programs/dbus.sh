# what: D-Bus: 20,000 calls, signals, and descriptors in messages, before, amid and behind many calls
# needs: dbus-daemon:dbus-daemon dbus-send:dbus-bin busctl:systemd gdbus:libglib2.0-bin python3:python3 /usr/lib/python3/dist-packages/dbus/__init__.py:python3-dbus /usr/lib/python3/dist-packages/gi/__init__.py:python3-gi

export DBUS_SESSION_BUS_ADDRESS=unix:path=$HERE/bus
echo_at=(org.example.Echo /org/example/Echo)

prepare() {
    cat >bus.conf <<END_CONF
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>session</type>
  <listen>unix:path=$HERE/bus</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_destination="*"/>
    <allow receive_sender="*"/>
    <allow own="*"/>
  </policy>
</busconfig>
END_CONF
    cat >service.py <<'END_PYTHON'
import os
import dbus
import dbus.service
from dbus.mainloop.glib import DBusGMainLoop
from gi.repository import GLib

NAME = "org.example.Echo"


class Echo(dbus.service.Object):
    @dbus.service.method(NAME, in_signature="ay", out_signature="ay", byte_arrays=True)
    def Echo(self, data):
        return dbus.ByteArray(data)

    @dbus.service.method(NAME, in_signature="h", out_signature="ay")
    def Read(self, descriptor):
        with os.fdopen(descriptor.take(), "rb") as file:
            return dbus.ByteArray(file.read())

    @dbus.service.method(NAME, in_signature="s", out_signature="h")
    def Open(self, path):
        with open(path, "rb") as file:
            return dbus.types.UnixFd(file)

    @dbus.service.method(NAME, in_signature="u", out_signature="")
    def Count(self, most):
        for number in range(most):
            self.Counted(number)

    @dbus.service.signal(NAME, signature="u")
    def Counted(self, number):
        pass


DBusGMainLoop(set_as_default=True)
bus = dbus.SessionBus()
name = dbus.service.BusName(NAME, bus)
echo = Echo(bus, "/org/example/Echo")
GLib.MainLoop().run()
END_PYTHON
    cat >client.py <<'END_PYTHON'
import hashlib
import os
import sys
import dbus
from dbus.mainloop.glib import DBusGMainLoop
from gi.repository import GLib

NAME, PATH = "org.example.Echo", "/org/example/Echo"
DBusGMainLoop(set_as_default=True)


def connect():
    bus = dbus.bus.BusConnection(os.environ["DBUS_SESSION_BUS_ADDRESS"])
    return dbus.Interface(bus.get_object(NAME, PATH), NAME), bus


def echoes(echo, count):
    total = hashlib.md5()
    for number in range(count):
        data = (b"%d " % number) * (number % 50 * 20)
        answer = bytes(echo.Echo(dbus.ByteArray(data), byte_arrays=True))
        assert answer == data, number
        total.update(answer)
    print(count, "echoes", total.hexdigest(), flush=True)


def descriptors(echo):
    """A pipe's end to the service, and a file's descriptor from it."""
    reading, writing = os.pipe()
    os.write(writing, b"by a pipe")
    os.close(writing)
    print(bytes(echo.Read(dbus.types.UnixFd(reading), byte_arrays=True)).decode())
    os.close(reading)
    with os.fdopen(echo.Open(os.path.abspath("value")).take(), "rb") as file:
        print(hashlib.md5(file.read()).hexdigest(), flush=True)


def counted(echo, bus, most):
    loop, numbers = GLib.MainLoop(), []

    def note(number):
        numbers.append(int(number))
        if len(numbers) == most:
            loop.quit()

    bus.add_signal_receiver(note, "Counted", NAME)
    echo.Count(most)
    loop.run()
    print(most, "signals", "in order" if numbers == list(range(most)) else numbers)


echo, bus = connect()
echoes(echo, 12000)
counted(echo, bus, 5000)
descriptors(echo)
echoes(echo, 4000)
descriptors(echo)
other, _ = connect()
descriptors(other)
echoes(other, 4000)
END_PYTHON
    payload value 100000
}

server() {
    dbus-daemon --nofork --config-file="$HERE/bus.conf" &
    until [ -S bus ]; do sleep 0.02; done
    /usr/bin/python3 service.py &
    wait
}

listening() {
    until dbus-send --print-reply --dest=org.freedesktop.DBus / org.freedesktop.DBus.NameHasOwner \
        string:org.example.Echo 2>&1 | grep -q 'boolean true'; do sleep 0.05; done
}

client() {
    dbus-send --print-reply=literal --dest="${echo_at[0]}" "${echo_at[1]}" org.example.Echo.Echo array:byte:1,2,3
    gdbus call --session -d "${echo_at[0]}" -o "${echo_at[1]}" -m org.example.Echo.Echo '[byte 1, 2, 3]'
    busctl --address="$DBUS_SESSION_BUS_ADDRESS" call "${echo_at[@]}" org.example.Echo Echo ay 3 1 2 3
    /usr/bin/python3 client.py
}
