#!/usr/bin/env bash
# Makes a Debian package of what `make build` has built: RELEASE/deb/toehold_VERSION_ARCHITECTURE.deb.
#
#   scripts/deb.sh RELEASE        RELEASE is the directory with the program and the library
#
# debhelper does the packaging: its maintainer scripts for services are Debian's own. The list of
# files is that of `make install`. (cargo-deb would need that list a second time, and is one more
# thing to build.) The version is the program's: nothing here repeats it. The maintainer is who
# builds: DEBFULLNAME and DEBEMAIL, else what git knows, else whose commit it is.
set -euo pipefail

source=$(cd "${BASH_SOURCE%/*}/.." && pwd)
release=$(cd "$1" && pwd)
version=$("$release/toehold" --version)
version=${version##* }
name=${DEBFULLNAME:-$(git -C "$source" config user.name || git -C "$source" log -1 --format=%an)}
email=${DEBEMAIL:-$(git -C "$source" config user.email || git -C "$source" log -1 --format=%ae)}

# The commit's.
time=$(git -C "$source" log -1 --format=%ct)

stage=$release/deb/toehold-$version
rm -rf "$release/deb"
mkdir -p "$stage"
cp -r "$source/contrib/debian" "$stage/debian"
cd "$stage"
sed -i "s/@MAINTAINER@/$name <$email>/" debian/control
cat >debian/changelog <<END
toehold ($version) unstable; urgency=medium

  * See CHANGELOG.md for what has changed.

 -- $name <$email>  $(date -R -d "@$time")
END
# DEP-5: an empty line is a dot.
{
    sed "s/@YEAR@/$(date -d "@$time" +%Y)/" debian/copyright.head
    sed -e 's/^$/./' -e 's/^/ /' "$source/LICENSE-MIT"
} >debian/copyright
rm debian/copyright.head
mkdir -p debian/source
echo '3.0 (native)' >debian/source/format
# The units name the place where `make install` puts the program by default.
in_usr='s|/usr/local/bin/|/usr/bin/|'
sed "$in_usr" "$source/contrib/systemd/toehold-adapter.service" \
    >debian/toehold.toehold-adapter.service
mkdir user
for unit in "$source"/contrib/systemd/user/*; do
    sed "$in_usr" "$unit" >"user/${unit##*/}"
done
cp "$source/contrib/toehold.conf" .
printf '%s\n' 'toehold.conf etc/toehold' 'user usr/lib/systemd' >debian/toehold.install
# Where debhelper does not look for a changelog of its own.
mkdir manual
cp -r "$source/README.md" "$source/CHANGELOG.md" "$source/docs" manual
printf 'manual/%s\n' README.md CHANGELOG.md docs >debian/toehold.docs
SOURCE=$source CARGO_TARGET_DIR=${release%/*} dpkg-buildpackage -b -us -uc --no-pre-clean >../build.log 2>&1 ||
    { cat ../build.log >&2; exit 1; }
package=$(echo "$release"/deb/*.deb)
lintian --fail-on error,warning "$package"
echo "$package"
