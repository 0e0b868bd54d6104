# what: X11: x11perf with and without shared images, screenshots, a picture shown, a property, xterm
# needs: Xvfb:xvfb x11perf:x11-apps xwd:x11-apps xwud:x11-apps xdpyinfo:x11-utils xwininfo:x11-utils xprop:x11-utils xlsatoms:x11-utils xterm:xterm

server() {
    # It chooses a number that is free. The root window has a pattern.
    exec Xvfb -displayfd 3 -screen 0 1280x1024x24 -nolisten tcp -noreset -retro 3>display
}

listening() {
    until [ -s display ]; do sleep 0.02; done
}

# The picture, without a head that names the window.
pixels() {
    tail -c 5242880 | cksum
}

# The window in which xwud shows a picture.
window() {
    xwininfo -root -tree | sed -n 's/^ *\(0x[0-9a-f]*\) "xwud.*/\1/p'
}

client() {
    DISPLAY=:$(cat display)
    export DISPLAY
    xdpyinfo -ext all | grep -v '^name of display'
    xlsatoms -range 1-68 | cksum
    x11perf -repeat 1 -time 1 -pointer -getimage500 -putimage500 -shmput500 |
        sed -nE 's/^.*[0-9]\/sec\): /measured: /p' | sort -u
    for _ in {1..8}; do
        xwd -silent -root | pixels
    done
    xwd -silent -root >picture
    xwud -in picture &
    until [ -n "$(window)" ]; do sleep 0.05; done
    until [ "$(xwd -silent -id "$(window)" | pixels)" = "$(pixels <picture)" ]; do sleep 0.05; done
    echo shown
    kill $!
    payload value 60000
    xprop -root -f CUT 8s -set CUT "$(cat value)"
    xprop -root CUT | cksum
    xterm -geometry 100x40+0+0 -e sh -c 'seq 1 20000; echo done >xterm.done'
    echo "xterm $?, $(cat xterm.done)"
}
