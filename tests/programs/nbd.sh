# what: nbdkit with qemu-img and nbdcopy: 64 MB images
# needs: nbdkit:nbdkit qemu-img:qemu-utils nbdcopy:libnbd-bin

prepare() {
    payload image 67108864
}

server() {
    exec nbdkit -f --ipaddr 127.0.0.1 -p "$PORT" file image
}

client() {
    qemu-img convert -O raw "nbd://127.0.0.1:$PORT" one
    nbdcopy "nbd://127.0.0.1:$PORT" two
    nbdcopy one "nbd://127.0.0.1:$PORT"
    cksum <one
    cksum <two
    cksum <image
}
