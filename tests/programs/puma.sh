# what: puma: Rack, threads
# needs: puma:puma curl:curl

prepare() {
    cat >config.ru <<'END'
run lambda { |env|
  size = env["PATH_INFO"][1..].to_i
  body = ("#{size}\n" * (size / 2 + 1))[0, size]
  [200, { "Content-Length" => size.to_s }, [body]]
}
END
}

server() {
    exec puma -q -t 4:4 -b "tcp://127.0.0.1:$PORT" config.ru
}

client() {
    fetch "http://127.0.0.1:$PORT"
}
