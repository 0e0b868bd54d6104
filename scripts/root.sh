#!/usr/bin/env bash
# Makes a fresh Debian 12 in a directory, once: a later call with the same packages does nothing.
# Needs root and debootstrap. Exit status 3: the packages cannot be downloaded.
#
#   scripts/root.sh ROOT [PACKAGE...]      PACKAGE: what is installed beside the minimal system
set -euo pipefail

root=$1
shift
packages=$*
done=$root/.done
# One makes the system at a time. Others wait, and find it made.
mkdir -p "$(dirname "$root")"
exec 9>"$root.lock"
flock 9
[ "$(cat "$done" 2>/dev/null)" != "with $packages" ] || exit 0

# The mirror that this host itself uses.
# shellcheck disable=SC2016
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Codename: bookworm' |
    head -n 1)
log=$root.log
rm -rf "$root"
mkdir -p "$root"
debootstrap --variant=minbase --foreign ${packages:+"--include=${packages// /,}"} bookworm "$root" \
    "$mirror" >"$log" 2>&1 || { tail "$log" >&2; exit 3; }
trap 'tail "$log" >&2' ERR
# In a container debootstrap makes it a link.
[ ! -L "$root/proc" ] || rm "$root/proc"
mkdir -p "$root/proc"
# Packages start no services now, and need not survive a loss of power.
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
mkdir -p "$root/etc/dpkg/dpkg.cfg.d"
echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/unsafe-io"
# Mounts and processes of the installation end with it.
unshare --mount --pid --fork --kill-child env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
    LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    chroot "$root" /debootstrap/debootstrap --second-stage >>"$log" 2>&1
rm -f "$root/usr/sbin/policy-rc.d" "$root/etc/dpkg/dpkg.cfg.d/unsafe-io"
rm -f "$root"/var/cache/apt/archives/*.deb
echo "with $packages" >"$done"
