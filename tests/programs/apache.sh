# what: Apache httpd: event, worker and prefork; workers as another user; a graceful restart under kept connections
# needs: apache2:apache2-bin curl:curl ab:apache2-utils
# user: root

module() {
    echo "LoadModule $1_module /usr/lib/apache2/modules/mod_$1.so"
}

# Kind of workers, port
configuration() {
    mkdir -p "$1"
    cat >"$1.conf" <<END
$(module mpm_"$1")
$(module authz_core)
ServerName localhost
ServerRoot $HERE
Listen 127.0.0.1:$2
User www-data
Group www-data
PidFile $HERE/$1/pid
Mutex file:$HERE/$1
ErrorLog $HERE/$1/log
DocumentRoot $FILES
KeepAlive On
MaxKeepAliveRequests 0
<Directory $FILES>
Require all granted
</Directory>
END
}

prepare() {
    payloads
    chmod 755 "$HERE"
    configuration event "$PORT"
    configuration worker "$PORT2"
    configuration prefork "$PORT3"
}

server() {
    apache2 -D FOREGROUND -f "$HERE/event.conf" &
    apache2 -D FOREGROUND -f "$HERE/worker.conf" &
    apache2 -D FOREGROUND -f "$HERE/prefork.conf" &
    wait
}

ready() {
    await "$PORT" "$PORT2" "$PORT3"
}

client() {
    fetch "http://127.0.0.1:$PORT"
    fetch "http://127.0.0.1:$PORT2"
    fetch "http://127.0.0.1:$PORT3"
    ab -q -k -c 20 -n 20000 "http://127.0.0.1:$PORT/1000" >ab.log &
    local load=$!
    sleep 0.3
    kill -USR1 "$(<event/pid)"
    wait "$load"
    # A connection that the old workers close just as a request comes is a failed one to ab, on the kernel as here.
    grep -E "^Complete" ab.log
}
