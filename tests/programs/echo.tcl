# Lines back as they came: echo.tcl PORT
proc accept {channel address port} {
    fconfigure $channel -buffering line -translation lf
    fileevent $channel readable [list answer $channel]
}
proc answer {channel} {
    if {[gets $channel line] >= 0} {
        puts $channel $line
    } elseif {[eof $channel]} {
        close $channel
    }
}
socket -server accept -myaddr 127.0.0.1 [lindex $argv 0]
vwait forever
