# what: Go: Prometheus scrapes itself and Caddy ten times a second, and is asked
# needs: curl:curl
# go: prometheus=github.com/prometheus/prometheus/cmd/prometheus@v0.316.0 caddy=github.com/caddyserver/caddy/v2/cmd/caddy@v2.11.9

prepare() {
    cat >prometheus.yml <<END
global: {scrape_interval: 100ms, scrape_timeout: 100ms}
scrape_configs:
  - {job_name: itself, static_configs: [{targets: ["127.0.0.1:$PORT"]}]}
  - {job_name: caddy, static_configs: [{targets: ["127.0.0.1:$PORT2"]}]}
END
    printf '{\n metrics\n admin off\n auto_https off\n}\nhttp://127.0.0.1:%s {\n metrics /metrics\n respond ok\n}\n' "$PORT2" >Caddyfile
}

server() {
    export XDG_DATA_HOME=$HERE XDG_CONFIG_HOME=$HERE
    patched "$BUILT/caddy" run --config Caddyfile 2>caddy.log &
    patched "$BUILT/prometheus" --config.file=prometheus.yml --storage.tsdb.path=data --web.listen-address="127.0.0.1:$PORT" 2>prometheus.log &
    wait
}

ready() {
    await "$PORT2"
}

query() {
    curl -sS --noproxy '' --get --data-urlencode "query=$1" "http://127.0.0.1:$PORT/api/v1/query" | grep -oE '"value":\[[0-9.]+,"[^"]*"' | cut -d, -f2
}

client() {
    # Fifty scrapes of each, all of which succeeded.
    until [ "$(query 'min(count_over_time(up[1h])) >= bool 50')" = '"1"' ]; do sleep 0.2; done
    query 'min(min_over_time(up[1h]))'
    query 'count(up)'
}
