# what: iperf 2, iperf3, sockperf and qperf, with their own checks
# needs: iperf:iperf iperf3:iperf3 sockperf:sockperf qperf:qperf

server() {
    iperf -s -B 127.0.0.1 -p "$PORT" >/dev/null &
    iperf3 -s -B 127.0.0.1 -p "$PORT2" >/dev/null &
    sockperf server --tcp -i 127.0.0.1 -p "$PORT3" >/dev/null &
    qperf -lp "$PORT4" &
    wait
}

ready() {
    await "$PORT2" "$PORT3" "$PORT4"
}

client() {
    iperf -c 127.0.0.1 -p "$PORT" -n 500M -P 2 | without_numbers | grep -c SUM
    iperf3 -c 127.0.0.1 -p "$PORT2" -n 1G -J | grep -c '"sum_received"'
    iperf3 -c 127.0.0.1 -p "$PORT2" -n 1G -R -Z -J | grep -c '"sum_received"'
    sockperf ping-pong --tcp -i 127.0.0.1 -p "$PORT3" -t 1 --mps 20000 --msg-size 1400 --data-integrity | grep -oE 'dropped messages = 0'
    # GB/sec or MB/sec, as fast as it was.
    qperf -lp "$PORT4" -t 1 127.0.0.1 tcp_bw tcp_lat | without_numbers | sed 's/[GMK]B/B/'
}
