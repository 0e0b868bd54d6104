# what: PHP-FPM behind nginx: FastCGI over TCP, kept connections
# needs: php-fpm8.2:php8.2-fpm nginx:nginx-light curl:curl ab:apache2-utils

# Where PHP-FPM listens, and how nginx says so. php-unix.sh has others.
LISTENS=127.0.0.1:$PORT2
REACHES=$LISTENS

prepare() {
    cat >index.php <<'END'
<?php
$n = (int) $_GET["n"];
for ($i = 0; $i < $n; $i++) { echo md5((string) $i), "\n"; }
END
    cat >fpm.conf <<END
[global]
daemonize = no
error_log = $HERE/fpm.log
[www]
$([ -z "$AS_ROOT" ] || printf 'user = root\ngroup = root\n')
listen = $LISTENS
pm = static
pm.max_children = 3
END
    nginx_config 1 <<END
    upstream php { server $REACHES; keepalive 3; }
    server {
        listen 127.0.0.1:$PORT;
        location / {
            fastcgi_pass php;
            fastcgi_keep_conn on;
            fastcgi_param SCRIPT_FILENAME $HERE/index.php;
            fastcgi_param REQUEST_METHOD \$request_method;
            fastcgi_param QUERY_STRING \$query_string;
        }
    }
END
}

server() {
    php-fpm8.2 -R -y fpm.conf &
    nginx -p "$HERE" -c "$HERE/nginx.conf" &
    wait
}

ready() {
    case $LISTENS in
    /*) until [ -S "$LISTENS" ]; do sleep 0.02; done ;;
    *) await "$PORT2" ;;
    esac
}

client() {
    local n
    for n in 0 1 1000 100000; do
        local urls=()
        for _ in {1..10}; do urls+=("http://127.0.0.1:$PORT/?n=$n"); done
        curl -sS --fail --max-time 50 "${urls[@]}" | cksum
    done
    ab -q -k -c 3 -n 5000 "http://127.0.0.1:$PORT/?n=10" | grep -E '^(Complete|Failed)'
}
