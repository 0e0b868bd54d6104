# what: nginx with two workers: HTTP/1.1, TLS, HTTP/2; loads by wrk, ab, siege and h2load
# needs: nginx:nginx-light curl:curl wrk:wrk ab:apache2-utils siege:siege h2load:nghttp2-client openssl:openssl

prepare() {
    payloads
    certificate
    nginx_config 2 <<END
    sendfile on;
    server { listen 127.0.0.1:$PORT; root $FILES; }
    server {
        listen 127.0.0.1:$PORT2 ssl http2;
        root $FILES;
        ssl_certificate cert.pem;
        ssl_certificate_key key.pem;
    }
END
}

server() {
    exec nginx -p "$HERE" -c "$HERE/nginx.conf"
}

client() {
    fetch "http://127.0.0.1:$PORT"
    fetch -k --http1.1 "https://127.0.0.1:$PORT2"
    fetch -k --http2 "https://127.0.0.1:$PORT2"
    ab -q -k -c 20 -n 20000 "http://127.0.0.1:$PORT/1000" | grep -E '^(Complete|Failed)'
    h2load -n 20000 -c 10 -m 10 "https://127.0.0.1:$PORT2/1000" | grep -oE '[0-9]+ succeeded, [0-9]+ failed, [0-9]+ errored'
    siege -q -b -c 10 -r 200 "http://127.0.0.1:$PORT/65536" 2>&1 | grep -E 'failed|transactions"' || true
    wrk -t 1 -c 30 -d 1 "http://127.0.0.1:$PORT/1000" | grep -cE 'Socket errors|Non-2xx' || true
}
