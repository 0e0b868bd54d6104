#!/usr/bin/env bash
# Boots systemd of a root directory, in namespaces of its own. Needs root, cgroup2 and overlayfs.
#
#   scripts/boot.sh ROOT SCRATCH       SCRATCH: an empty directory, where things are mounted
#   scripts/boot.sh --can SCRATCH      says why this system refuses it, or nothing
#
# ROOT is read only: changes are in memory, and end with the system. So does every mount: they are in
# a mount namespace. When this script's process ends, in whatever way, the system ends; its control
# group, toehold-tour-PID, is removed by the next call.
set -euo pipefail

# In a mount namespace of its own.
if [ "${BOOT_IN:-}" != mounts ]; then
    export BOOT_IN=mounts
    exec unshare --mount --propagation private "${BASH_SOURCE[0]}" "$@"
fi
root=$1
scratch=$2
namespaces=(--pid --fork --kill-child --mount --net --ipc --uts --cgroup)

mount -t tmpfs -o mode=755 none "$scratch"
mkdir "$scratch"/{upper,work,root,cgroup,lower}
mount -t cgroup2 none "$scratch/cgroup"
if [ "$root" = --can ]; then
    root=$scratch/lower
fi
mount -t overlay -o "lowerdir=$root,upperdir=$scratch/upper,workdir=$scratch/work" none \
    "$scratch/root"
for group in "$scratch"/cgroup/toehold-tour-*; do
    # Another system's that runs is left alone.
    if grep -qs '^populated 0' "$group/cgroup.events"; then
        find "$group" -depth -type d -exec rmdir {} +
    fi
done
if [ "$1" = --can ]; then
    exec unshare "${namespaces[@]}" true
fi
mkdir "$scratch/cgroup/toehold-tour-$$"
echo $$ >"$scratch/cgroup/toehold-tour-$$/cgroup.procs"
umount "$scratch/cgroup"

cd "$scratch/root"
# systemd leaves to a container's manager what is the host's: devices, parameters of the kernel.
# shellcheck disable=SC2016
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=toehold-tour \
    unshare "${namespaces[@]}" bash -euc '
    mount -t proc proc proc
    mount --bind proc/sys/net proc/sys/net
    mount --bind proc/sys proc/sys
    mount -o remount,bind,ro proc/sys
    mount -t sysfs -o ro sysfs sys
    mount -t cgroup2 none sys/fs/cgroup
    mount -t tmpfs -o mode=755 none run
    mount -t tmpfs -o mode=755 none dev
    mkdir dev/pts dev/shm
    for device in null zero full random urandom tty; do
        touch dev/$device
        mount --bind /dev/$device dev/$device
    done
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620 none dev/pts
    ln -s pts/ptmx dev/ptmx
    ln -s /proc/self/fd dev/fd
    pivot_root . .
    umount -l .
    hostname tour
    exec /lib/systemd/systemd --log-target=journal'
