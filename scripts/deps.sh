#!/usr/bin/env bash
# Sees that what is needed is here, and installs Debian packages for what is not.
#
#   scripts/deps.sh [rust] [demo] [test] [bench] [page] [programs] [suites] [deb]
#
# Does nothing when everything is there. Packages that bring a service do not start it, now or at
# boot: the demonstration and the tests run servers of their own, on free ports, in private
# directories.
set -euo pipefail

# Keep in step with `rust-version` in Cargo.toml.
rust_minor_min=88

# program or file:package. `cargo xtask check` sees that each program of the tests stands here.
demo=(cc:gcc /usr/include/stdlib.h:libc6-dev redis-server:redis-server redis-benchmark:redis-tools
    redis-cli:redis-tools iperf3:iperf3 sockperf:sockperf nginx:nginx-light wrk:wrk)
test=("${demo[@]}" curl:curl ethtool:ethtool git:git go:golang-go initdb:postgresql ip:iproute2 memcached:memcached
    musl-gcc:musl-tools node:nodejs objdump:binutils pg_isready:postgresql pgbench:postgresql ping:iputils-ping
    pkg-config:pkg-config postgres:postgresql
    psql:postgresql python3:python3 redis-check-rdb:redis-tools setpriv:util-linux
    /bin/sh:dash shellcheck:shellcheck ssh:openssh-client ssh-keygen:openssh-client sshd:openssh-server
    gdb:gdb haproxy:haproxy nft:nftables proot:proot socat:socat ss:iproute2 strace:strace tc:iproute2
    podman:podman newuidmap:uidmap slirp4netns:slirp4netns mknod:coreutils crun:crun unshare:util-linux mount:mount ldd:libc-bin
    systemctl:systemd systemd-analyze:systemd tclsh:tcl tcpdump:tcpdump tshark:tshark
    tbench:dbench nuttcp:nuttcp qemu-aarch64:qemu-user qemu-x86_64:qemu-user
    /usr/include/linux/idxd.h:linux-libc-dev
    /usr/lib/x86_64-linux-gnu/liburing.so.2:liburing2)
suites=(apache2:apache2 cmake:cmake cc:gcc dpkg-source:dpkg-dev haproxy:haproxy make:make
    perl:perl postgres:postgresql
    apxs2:apache2-dev /usr/share/perl5/LWP.pm:libwww-perl /usr/share/perl5/HTTP/DAV.pm:libhttp-dav-perl
    /usr/share/perl5/IO/Socket/SSL.pm:libio-socket-ssl-perl
    /usr/share/perl5/AnyEvent/WebSocket/Client.pm:libanyevent-websocket-client-perl
    /usr/lib/x86_64-linux-gnu/perl5/5.36/FCGI.pm:libfcgi-perl
    python3.11:python3.11 setpriv:util-linux socat:socat tclsh:tcl varnishd:varnish varnishtest:varnish
    /usr/include/event.h:libevent-dev /usr/include/openssl/ssl.h:libssl-dev
    /usr/lib/python3.11/test/test_socket.py:libpython3.11-testsuite)
deb=(dh:debhelper dpkg-buildpackage:dpkg-dev lintian:lintian mmdebstrap:mmdebstrap
    nsenter:util-linux)
page=(chromium-headless-shell:chromium-headless-shell)
bench=(perf:linux-perf valgrind:valgrind ip:iproute2 ethtool:ethtool tbench:dbench nuttcp:nuttcp iperf3:iperf3
    sockperf:sockperf wrk:wrk apache2:apache2 haproxy:haproxy gmond:ganglia-monitor
    gmetad:gmetad mpicc.mpich:libmpich-dev mpiexec.mpich:mpich
    glusterfsd:glusterfs-server glusterfs:glusterfs-client /usr/include/glusterfs/api/glfs.h:libglusterfs-dev
    mfsmaster:moosefs-master mfschunkserver:moosefs-chunkserver mfsmount:moosefs-client fio:fio
    java:default-jre-headless javac:default-jdk-headless /usr/share/tomcat10/bin/bootstrap.jar:tomcat10
    mariadbd:mariadb-server mariadb-install-db:mariadb-server
    /usr/share/java/mariadb-java-client.jar:libmariadb-java
    nginx:nginx-light curl:curl openssl:openssl unshare:util-linux cc:gcc)
services=(redis-server nginx apache2 apache-htcacheclean memcached postgresql iperf3 ssh ganglia-monitor
    gmetad glusterd moosefs-master moosefs-chunkserver mariadb tomcat10 beanstalkd caddy dovecot etcd
    haproxy hitch lighttpd mosquitto named
    epmd epmd.socket pgbouncer slapd unbound vsftpd php8.2-fpm rabbitmq-server rsync smbd nmbd squid stunnel4 varnish)
# Services whose packages have other names.
declare -A package_of=([nginx]=nginx-light [ssh]=openssh-server [apache-htcacheclean]=apache2
    [dovecot]=dovecot-core [etcd]=etcd-server [named]=bind9 [smbd]=samba
    [nmbd]=samba [epmd]=erlang-base [epmd.socket]=erlang-base [glusterd]=glusterfs-server [mariadb]=mariadb-server)
policy=/usr/sbin/policy-rc.d
forbidden=no

# Debian keeps servers where an ordinary user's PATH does not look.
PATH=$PATH:/usr/sbin:/sbin

die() {
    echo "$*" >&2
    exit 1
}

check_rust() {
    command -v cargo >/dev/null || die "Rust is not installed; see https://rustup.rs (Debian 12's own is too old)"
    local version
    version=$(rustc --version 2>/dev/null | cut -d' ' -f2) || version=0.0
    local major=${version%%.*} rest=${version#*.}
    if ((major == 1 && ${rest%%.*} < rust_minor_min)) || ((major < 1)); then
        die "Rust 1.$rust_minor_min or newer is needed, this is $version; run: rustup update stable"
    fi
}

is_installed() {
    command -v "$1" >/dev/null || [ -e "$1" ] || compgen -G "/usr/lib/postgresql/*/bin/$1" >/dev/null
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

# Debian asks this file whether a service may be started; 101 is "no".
forbid_starting() {
    [ "$forbidden" = no ] || return 0
    forbidden=yes
    if [ -e "$policy" ]; then
        as_root mv "$policy" "$policy.before-toehold"
    fi
    trap allow_starting EXIT
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    as_root chmod 755 "$policy"
}

allow_starting() {
    as_root rm -f "$policy"
    if [ -e "$policy.before-toehold" ]; then
        as_root mv "$policy.before-toehold" "$policy"
    fi
}

# The packages just installed would otherwise start their services at the next boot.
keep_off_at_boot() {
    local service
    for service in "${services[@]}"; do
        if [[ " $* " == *" $service "* || " $* " == *" ${package_of[$service]:-$service} "* ]]; then
            if command -v systemctl >/dev/null; then
                as_root systemctl disable --quiet "$service" >/dev/null 2>&1 || true
            # update-rc.d fails for a service that does not start at boot.
            elif compgen -G "/etc/rc?.d/S??$service" >/dev/null; then
                as_root update-rc.d "$service" disable
            fi
        fi
    done
}

install_missing() {
    local wanted packages=() programs=()
    for wanted in "$@"; do
        if ! is_installed "${wanted%%:*}" && [[ " ${packages[*]} " != *" ${wanted##*:} "* ]]; then
            programs+=("${wanted%%:*}")
            packages+=("${wanted##*:}")
        fi
    done
    [ ${#packages[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || die "not installed: ${programs[*]}; install them with this system's own package manager"
    if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
        die "not installed: ${programs[*]}; as root, run: apt-get install --no-install-recommends ${packages[*]}"
    fi
    echo "Installing Debian packages: ${packages[*]}"
    echo "(their services are not started, now or at boot)"
    forbid_starting
    local options=(-qq -o Dpkg::Use-Pty=0)
    as_root apt-get "${options[@]}" update
    as_root env DEBIAN_FRONTEND=noninteractive apt-get "${options[@]}" install -y --no-install-recommends \
        "${packages[@]}" >/dev/null
    keep_off_at_boot "${packages[@]}"
}

for part in "$@"; do
    case $part in
    rust) check_rust ;;
    demo) install_missing "${demo[@]}" ;;
    test) install_missing "${test[@]}" ;;
    bench) install_missing "${bench[@]}" ;;
    page) install_missing "${page[@]}" ;;
    deb) install_missing "${deb[@]}" ;;
    suites) install_missing "${suites[@]}" ;;
    programs)
        mapfile -t programs < <(sed -n 's/^# needs: //p' "${BASH_SOURCE%/*}"/../tests/programs/*.sh | tr ' ' '\n' | sort -u)
        install_missing "${programs[@]}"
        ;;
    *) die "usage: scripts/deps.sh [rust] [demo] [test] [bench] [page] [programs] [suites] [deb]" ;;
    esac
done
