# what: gdb with gdbserver: breakpoints and memory read at a distance
# needs: gdb:gdb gdbserver:gdbserver gcc:gcc

prepare() {
    cat >loop.c <<'END'
int data[65536];
void turn(int i) { data[i] = i * i; }
int main(void) {
    for (int i = 0; i < 200; i++) turn(i);
    return 0;
}
END
    gcc -g -O0 -o loop loop.c
}

server() {
    exec gdbserver --once "127.0.0.1:$PORT" "$HERE/loop"
}

client() {
    gdb -q -nx -batch -ex "target remote 127.0.0.1:$PORT" -ex 'break turn' -ex 'set max-value-size unlimited' -ex 'ignore 1 149' -ex continue -ex 'dump binary value memory data' \
        -ex 'print i' -ex kill "$HERE/loop" 2>/dev/null | grep '^\$1'
    cksum <memory
}
