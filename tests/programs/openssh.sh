# what: OpenSSH: commands, scp, sftp, and a forwarded connection to lighttpd
# needs: sshd:openssh-server ssh:openssh-client lighttpd:lighttpd curl:curl
# user: root

prepare() {
    mkdir -p /run/sshd
    ssh-keygen -q -t ed25519 -N '' -f host
    ssh-keygen -q -t ed25519 -N '' -f key
    cp key.pub authorized
    cat >sshd_config <<END
ListenAddress 127.0.0.1
Port $PORT
HostKey $HERE/host
PidFile none
AuthorizedKeysFile $HERE/authorized
StrictModes no
UsePAM no
Subsystem sftp internal-sftp
END
    cat >ssh_config <<END
Host *
Port $PORT
IdentityFile $HERE/key
IdentitiesOnly yes
StrictHostKeyChecking no
UserKnownHostsFile $HERE/known
LogLevel ERROR
END
    files_by_lighttpd "$PORT2" 1000
}

server() {
    lighttpd -D -f lighttpd.conf &
    "$(command -v sshd)" -D -e -f sshd_config &
    wait
}

ready() {
    await "$PORT2"
}

client() {
    ssh -F ssh_config 127.0.0.1 "cat $FILES/12345678" | cksum
    scp -q -F ssh_config "127.0.0.1:$FILES/12345678" one
    echo "get $FILES/12345678 two" | sftp -q -b - -F ssh_config 127.0.0.1 >/dev/null
    cksum <one
    cksum <two
    ssh -F ssh_config -N -L "127.0.0.1:$PORT3:127.0.0.1:$PORT2" 127.0.0.1 &
    local tunnel=$!
    await "$PORT3"
    fetch "http://127.0.0.1:$PORT3"
    kill "$tunnel"
}
