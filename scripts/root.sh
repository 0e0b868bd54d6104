#!/usr/bin/env bash
# Makes a fresh Debian 12 in a directory, once: a later call with the same packages does nothing.
# Needs root and mmdebstrap, which takes half of debootstrap's processor time.
# Exit status 3: the packages cannot be downloaded.
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
# Packages start no services now, and need not survive a loss of power. Mounts and processes of the
# installation end with it.
unshare --mount --pid --fork --kill-child --mount-proc \
    env PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    mmdebstrap --variant=minbase ${packages:+"--include=${packages// /,}"} \
    --dpkgopt=force-unsafe-io bookworm "$root" "$mirror" >"$log" 2>&1 || {
    tail "$log" >&2
    ! grep -qE 'Failed to fetch|Unable to fetch' "$log" || exit 3
    exit 1
}
rm -f "$root/etc/dpkg/dpkg.cfg.d/99mmdebstrap"
echo "with $packages" >"$done"
