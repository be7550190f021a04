#!/bin/sh
# Checks and measures burnish on this machine: sh burnish-gpu.run [--into FOLDER] [OPTIONS OF run.sh]
# Unpacks itself into FOLDER (by default ./burnish-gpu) and starts run.sh there. Needs tar, and xz or python3.
set -eu
into=.
if [ "${1:-}" = --into ]; then
    into=$2
    shift 2
fi
mkdir -p "$into"
first=$(awk '/^__PACKED__$/ { print NR + 1; exit }' "$0")
if command -v xz >/dev/null 2>&1; then
    tail -n "+$first" "$0" | xz -dc | tar -xf - -C "$into"
else
    tail -n "+$first" "$0" |
        python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.stdin.buffer), sys.stdout.buffer)' |
        tar -xf - -C "$into"
fi
exec "$into/burnish-gpu/run.sh" "$@"
__PACKED__
