# what: Samba: 12 MB files written and read by smbclient
# needs: smbd:samba smbclient:smbclient
# user: root

prepare() {
    mkdir share state
    payload 12MB 12345678
    cat >smb.conf <<END
[global]
smb ports = $PORT
interfaces = 127.0.0.1
bind interfaces only = yes
map to guest = Bad User
guest account = root
server role = standalone server
private dir = $HERE/state
lock directory = $HERE/state
state directory = $HERE/state
cache directory = $HERE/state
pid directory = $HERE/state
ncalrpc dir = $HERE/state/ncalrpc
log file = $HERE/log
disable spoolss = yes
load printers = no
[share]
path = $HERE/share
guest ok = yes
writable = yes
END
}

server() {
    exec smbd -F --no-process-group -s smb.conf
}

client() {
    local at
    for at in 1 2 3; do
        smbclient -N -s smb.conf -p "$PORT" //127.0.0.1/share -c "put 12MB $at; get $at back$at" >transfer.log 2>&1
        cksum <"back$at"
    done
}
