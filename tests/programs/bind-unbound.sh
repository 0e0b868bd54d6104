# what: BIND and, before it, unbound, over TCP: a transfer, lookups on kept connections, a load through three reloads
# needs: named:bind9 unbound:unbound dig:bind9-dnsutils dnsperf:dnsperf

prepare() {
    {
        printf '@ 60 SOA ns. h. 1 60 60 600000 60\n@ NS ns\nns A 127.0.0.1\n'
        for at in {1..20000}; do echo "h$at A 10.0.$((at / 250)).$((at % 250))"; done
        for at in {1..100}; do printf 'big TXT "%0200d"\n' "$at"; done
    } >zone
    cat >named.conf <<END
key k { algorithm hmac-sha256; secret "c2VjcmV0"; };
controls { inet 127.0.0.1 port $PORT3 allow { any; } keys { k; }; };
options {
    directory "$HERE";
    listen-on port $PORT { 127.0.0.1; };
    listen-on-v6 { none; };
    pid-file none;
    session-keyfile "$HERE/session";
    allow-transfer { any; };
    recursion no;
    tcp-clients 500;
};
zone "t.example" { type primary; file "zone"; };
END
    cat >rndc.conf <<END
key k { algorithm hmac-sha256; secret "c2VjcmV0"; };
options { default-key k; default-server 127.0.0.1; default-port $PORT3; };
END
    cat >unbound.conf <<END
server:
    interface: 127.0.0.1@$PORT2
    do-daemonize: no
    chroot: ""
    username: ""
    directory: "$HERE"
    pidfile: ""
    use-syslog: no
    logfile: "$HERE/log"
    tcp-upstream: yes
    incoming-num-tcp: 200
    outgoing-num-tcp: 100
    num-threads: 2
    do-not-query-localhost: no
    module-config: "iterator"
    cache-max-ttl: 0
remote-control:
    control-enable: no
forward-zone:
    name: "."
    forward-addr: 127.0.0.1@$PORT
END
}

server() {
    named -f -c named.conf &
    unbound -d -c unbound.conf &
    wait
}

ready() {
    await "$PORT2" "$PORT3"
    until dig +tcp @127.0.0.1 -p "$PORT" t.example SOA +short | grep -q ns; do sleep 0.1; done
}

# The answers without the seconds that they may be kept for: DIG'S-ARGUMENTS...
answers() {
    dig +tcp @127.0.0.1 "$@" +noall +answer | grep -v '^;' | sed -E 's/\s+[0-9]+\s+IN/ IN/' | sort | cksum
}

client() {
    local asked
    for asked in "$PORT" "$PORT2"; do
        printf 'h%d.t.example A\n' {1..1000} >names
        answers -p "$asked" +keepopen -f names
        answers -p "$asked" big.t.example TXT
        dnsperf -m tcp -s 127.0.0.1 -p "$asked" -d names -c 10 -n 10 -T 2 -t 60 2>/dev/null | grep -E 'sent:|lost:|codes:'
    done
    answers -p "$PORT" t.example AXFR
    dnsperf -m tcp -s 127.0.0.1 -p "$PORT" -d names -c 10 -n 100 -T 2 -t 60 2>/dev/null | grep lost: &
    local load=$!
    for at in 2 3 4; do
        sed -i "s/ h. [0-9]* / h. $at /" zone
        rndc -c rndc.conf reload t.example >/dev/null
        rndc -c rndc.conf reconfig
    done
    wait "$load"
    # A reload while another is under way does nothing, and so does one in the second of the last.
    until dig +tcp @127.0.0.1 -p "$PORT" t.example SOA +short | grep ' 4 '; do
        touch zone
        rndc -c rndc.conf reload t.example >/dev/null
        sleep 0.1
    done
}
