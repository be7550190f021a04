#!/bin/sh
# Runs the checks and the benchmarks, and prints one table. Ends with status 1 if a check fails.
#
#   run.sh [--device cuda|cpu] [--quick] [--no-bench] [--sanitizer] [--out FOLDER]
#
# --quick      short forms of the long ones
# --no-bench   checks only
# --sanitizer  the operations once more under compute-sanitizer's memcheck
# --out        where the rows go as JSON lines (by default ./out beside this script)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
device=cuda quick='' bench=yes sanitizer='' out="$here/out"
while [ $# -gt 0 ]; do
    case $1 in
    --device) device=$2 && shift ;;
    --device=*) device=${1#*=} ;;
    --quick) quick=--quick ;;
    --no-bench) bench='' ;;
    --sanitizer) sanitizer=yes ;;
    --out) out=$2 && shift ;;
    -h | --help)
        sed -n '2,9s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    *)
        echo "run.sh: unknown option $1; --help lists them" >&2
        exit 2
        ;;
    esac
    shift
done
mkdir -p "$out"
{
    date -u
    uname -srm
    "$here/bin/burnish" --version
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || true
    "$here/bin/burnish" doctor --device "$device" || true
} 2>&1 | tee "$out/machine.txt"
status=0
"$here/bin/burnish-check" --device "$device" --data "$here" --json "$out/checks.jsonl" $quick || status=$?
if [ -n "$sanitizer" ]; then
    compute-sanitizer --tool memcheck --error-exitcode 1 \
        "$here/bin/burnish-check" --device "$device" --data "$here" operation >"$out/sanitizer.txt" 2>&1 || status=1
    tail -n 3 "$out/sanitizer.txt"
fi
if [ -n "$bench" ]; then
    if command -v python3 >/dev/null; then
        python3 "$here/gpu.py" --burnish "$here/bin/burnish-check" --data "$here" --device "$device" \
            --out "$out/bench.jsonl" $quick || status=1
    else
        "$here/bin/burnish-check" bench --device "$device" --data "$here" --json "$out/bench.jsonl" $quick || status=1
    fi
fi
echo "rows are in $out"
exit $status
