#!/usr/bin/env bash
# Installs, removes and purges the package in a fresh Debian 12, and compares what is there before
# and after. Needs root.
#
#   scripts/deb-test.sh PACKAGE ROOT       ROOT: where the fresh system is made, once, and kept
set -euo pipefail

package=$1
fresh=$2/bookworm
root=$2/tried

fail() {
    echo "deb-test: $*" >&2
    exit 1
}

# `/proc` is there for the command alone: nothing stays mounted, however the test ends.
within() {
    # shellcheck disable=SC2016
    unshare --mount sh -c 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"' "$root" \
        env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "$@"
}

# Every file but the logs and lists of the package manager and the loader's cache.
files() {
    find "$root" -xdev \( -path "$root/var/lib/dpkg" -o -path "$root/var/log" \
        -o -path "$root/var/cache" -o -path "$root/proc" \) -prune -o -printf '%P %y %m %U %l\n' |
        LC_ALL=C sort
}

"${BASH_SOURCE%/*}/root.sh" "$fresh"
rm -rf "$root"
cp -a "$fresh" "$root"
cp "$package" "$root/root/toehold.deb"
mkdir -p "$root/etc/systemd/system"
# A service of somebody's, with a drop-in of somebody's.
mkdir -p "$root/lib/systemd/system" "$root/etc/systemd/system/sleeper.service.d"
printf '[Service]\nExecStart=/bin/sleep 1\n' >"$root/lib/systemd/system/sleeper.service"
printf '[Service]\nNice=1\n' >"$root/etc/systemd/system/sleeper.service.d/own.conf"
files >"$2/before"

within dpkg -i /root/toehold.deb >"$2/install.log" 2>&1 || { cat "$2/install.log"; fail "not installed"; }
for file in usr/bin/toehold usr/lib/toehold/libtoehold.so lib/systemd/system/toehold-adapter.service \
    usr/lib/systemd/user/toehold-adapter.service usr/lib/systemd/user/toehold-adapter.socket \
    etc/toehold/toehold.conf usr/share/bash-completion/completions/toehold; do
    [ -e "$root/$file" ] || fail "/$file is missing"
done
contents=$(dpkg-deb -c "$package")
for page in man1/toehold.1 man1/toehold-run.1 man5/toehold.conf.5 man5/toehold-engine.5; do
    # A minimal system leaves manual pages out: look into the package.
    [[ $contents == *"/usr/share/man/$page.gz"* ]] || fail "$page is missing"
done
[ -L "$root/etc/systemd/system/multi-user.target.wants/toehold-adapter.service" ] ||
    fail "the adapter does not start at boot"
[ -z "$(find "$root/etc/systemd/user" -name 'toehold*')" ] ||
    fail "each user has an adapter of their own without a wish"
grep -q '^ExecStart=/usr/bin/toehold ' "$root/lib/systemd/system/toehold-adapter.service" ||
    fail "the unit names another program"
grep -q '^ExecStart=/usr/bin/toehold ' "$root/usr/lib/systemd/user/toehold-adapter.service" ||
    fail "the unit of users names another program"
[ "$(within toehold --version)" = "toehold $(dpkg-deb -f "$package" Version)" ] ||
    fail "another version than the package's"
within toehold rules --system | grep -q 'no rules in /etc/toehold/toehold.conf' ||
    fail "the file of rules is not read"
[ "$(within toehold run --path host -- echo runs)" = runs ] || fail "a program does not run"
within toehold enable sleeper >/dev/null
grep -q 'LD_PRELOAD=/usr/lib/toehold/libtoehold.so' \
    "$root/etc/systemd/system/sleeper.service.d/50-toehold.conf" || fail "enable did nothing"
echo 'port 1 path host' >>"$root/etc/toehold/toehold.conf"

# The same version once more, as an upgrade: what is enabled stays.
within dpkg -i /root/toehold.deb >>"$2/install.log" 2>&1 || fail "not installed again"
[ -e "$root/etc/systemd/system/sleeper.service.d/50-toehold.conf" ] ||
    fail "an upgrade disables services"
grep -q '^port 1 path host' "$root/etc/toehold/toehold.conf" || fail "an upgrade loses rules"

within dpkg -r toehold >"$2/remove.log" 2>&1 || { cat "$2/remove.log"; fail "not removed"; }
[ ! -e "$root/etc/systemd/system/sleeper.service.d/50-toehold.conf" ] ||
    fail "a service stays enabled without the library"
[ -e "$root/etc/systemd/system/sleeper.service.d/own.conf" ] || fail "a file of the operator's went"
[ -e "$root/etc/toehold/toehold.conf" ] || fail "the configuration went before it was purged"
within dpkg -P toehold >"$2/purge.log" 2>&1 || { cat "$2/purge.log"; fail "not purged"; }
files >"$2/after"
diff "$2/before" "$2/after" || fail "purge leaves something, or takes something"
echo "deb-test: installed, upgraded, removed, purged; nothing is left"
