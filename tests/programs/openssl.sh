# what: OpenSSL's `s_server` and `s_client`, ncat: 12 MB each
# needs: openssl:openssl ncat:ncat

# Not nc: it drops what it has not sent when one side ends, on the kernel as under Toehold.

prepare() {
    certificate
    payload 12MB 12345678
}

server() {
    openssl s_server -quiet -WWW -accept "127.0.0.1:$PORT" -cert cert.pem -key key.pem &
    ncat -l 127.0.0.1 "$PORT2" <12MB >ncat.got &
    wait
}

ready() {
    await "$PORT2"
}

client() {
    printf 'GET /12MB HTTP/1.0\r\n\r\n' | openssl s_client -quiet -connect "127.0.0.1:$PORT" 2>/dev/null | cksum
    ncat --recv-only 127.0.0.1 "$PORT2" | cksum
}
