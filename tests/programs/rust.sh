# what: Rust for musl, static: a server and a client of the standard library with threads
# needs: /bin/bash:bash
# rust: rust-echo=echo.rs

server() {
    patched "$BUILT/rust-echo" server "$PORT"
}

client() {
    patched "$BUILT/rust-echo" client "$PORT"
}
