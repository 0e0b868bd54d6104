# what: vsftpd, which serves from a changed root as another user: active and passive transfers, ABOR with urgent data
# needs: vsftpd:vsftpd curl:curl lftp:lftp python3:python3
# user: root
# adapter: system

prepare() {
    payloads
    chmod 755 "$HERE"
    mkdir -p root/in empty
    chmod 777 root/in
    cp files/* root
    cat >vsftpd.conf <<END
listen=YES
listen_address=127.0.0.1
listen_port=$PORT
background=NO
anonymous_enable=YES
no_anon_password=YES
anon_root=$HERE/root
anon_upload_enable=YES
anon_other_write_enable=YES
write_enable=YES
anon_umask=022
secure_chroot_dir=$HERE/empty
# The filter is of 2012: it ends processes for calls that Debian 12's libc makes.
seccomp_sandbox=NO
async_abor_enable=YES
connect_from_port_20=NO
vsftpd_log_file=$HERE/log
END
}

server() {
    exec vsftpd vsftpd.conf
}

client() {
    local size
    for size in 0 1 65536 12345678; do
        both_modes "$size"
    done
    lftp -c "set cmd:interactive no; open -p $PORT 127.0.0.1; mirror -P4 / passive; set ftp:passive-mode off; pget -n 4 12345678 -o active"
    rmdir passive/in
    cat passive/* active | cksum
    python3 "$CASES/ftp-abort.py" "$PORT"
}

# Fetches a file three times, puts it and fetches that, with data connections of either side's opening: SIZE
both_modes() {
    local mode url=ftp://127.0.0.1:$PORT
    for mode in --ftp-pasv --ftp-port=-; do
        # curl's long options take no sign of equality.
        curl -sS ${mode/=/ } "$url/$1" "$url/$1" "$url/$1" | cksum
        curl -sS ${mode/=/ } -T "files/$1" "$url/in/$1"
        curl -sS ${mode/=/ } "$url/in/$1" | cksum
        curl -sS -Q "DELE in/$1" "$url/" >/dev/null
    done
}
