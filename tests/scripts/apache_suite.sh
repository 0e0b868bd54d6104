#!/usr/bin/env bash
# Runs a part of Apache httpd's own tests against Debian's server.
#
#   apache_suite.sh TEST...
#
# TEST is a file of tests or a folder with such files, such as `t/ssl`. The script is started in a
# copy of Debian's `debian/perl-framework`, as a user that may write there. The framework starts the
# server, with the event MPM and every module that Debian has, on some thirty ports.
set -euo pipefail

modules=/usr/lib/apache2/modules
{
    cat /etc/apache2/mods-available/mpm_event.load
    for load in /etc/apache2/mods-available/*.load; do
        [[ $load == */mpm_* ]] || cat "$load"
    done
    # Debian has no file for these: they are for tests.
    for name in bucketeer case_filter case_filter_in; do
        echo "LoadModule ${name}_module $modules/mod_$name.so"
    done
    echo "TypesConfig /etc/mime.types"
    echo "ServerName localhost"
    echo "DefaultRuntimeDir $PWD"
} >loaded.conf

export HOME=$PWD LC_ALL=C PATH=$PATH:/usr/sbin
perl Makefile.PL -apxs "$(command -v apxs)" -httpd_conf "$PWD/loaded.conf" >configure.log 2>&1 || {
    cat configure.log
    exit 1
}
# What the server says would stand in the middle of a line about a test.
status=0
t/TEST "$@" 2>errors.log || status=$?
# The framework has the server log all it does: hundreds of megabytes.
cat errors.log
tail -n 50 t/logs/error_log || true
exit "$status"
