# what: uwsgi: WSGI, a connection for each request
# needs: uwsgi:uwsgi-core /usr/lib/uwsgi/plugins/python3_plugin.so:uwsgi-plugin-python3 curl:curl

prepare() {
    wsgi_app application
}

server() {
    exec uwsgi --plugin python3 --http-socket "127.0.0.1:$PORT" --wsgi-file app.py --need-app --die-on-term --disable-logging
}

client() {
    fetch "http://127.0.0.1:$PORT"
}
