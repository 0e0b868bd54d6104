# what: Python: uvloop, gevent, Twisted, `makefile`, a fork in mid-connection
# needs: /usr/bin/python3:python3 /usr/lib/python3/dist-packages/uvloop:python3-uvloop /usr/lib/python3/dist-packages/gevent:python3-gevent /usr/lib/python3/dist-packages/twisted:python3-twisted

server() {
    local kinds=(uvloop gevent twisted forks) ports=("$PORT" "$PORT2" "$PORT3" "$PORT4") at
    for at in 0 1 2 3; do
        /usr/bin/python3 "$CASES/echo.py" "${kinds[at]}" "${ports[at]}" &
    done
    wait
}

ready() {
    await "$PORT2" "$PORT3" "$PORT4"
}

client() {
    /usr/bin/python3 "$CASES/echo.py" client "$PORT" "$PORT2" "$PORT3" "$PORT4"
}
