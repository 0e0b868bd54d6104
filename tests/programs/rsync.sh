# what: rsync: a daemon, both ways
# needs: rsync:rsync

prepare() {
    payloads
    mkdir put
    cat >rsyncd.conf <<END
use chroot = no
$([ -z "$AS_ROOT" ] || printf 'uid = root\ngid = root\n')
[files]
path = $FILES
[put]
path = $HERE/put
read only = no
END
}

server() {
    exec rsync --daemon --no-detach --address=127.0.0.1 --port="$PORT" --config=rsyncd.conf
}

client() {
    rsync -rW "rsync://127.0.0.1:$PORT/files/" got/
    rsync -rW got/ "rsync://127.0.0.1:$PORT/put/"
    cat got/* put/* | cksum
}
