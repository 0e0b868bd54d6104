# what: Perl: buffered streams, a process for each connection; Tcl: channels and file events
# needs: perl:perl tclsh8.6:tcl8.6

server() {
    perl "$CASES/echo.pl" server "$PORT" &
    tclsh8.6 "$CASES/echo.tcl" "$PORT2" &
    wait
}

ready() {
    await "$PORT2"
}

client() {
    perl "$CASES/echo.pl" client "$PORT" "$PORT2"
}
