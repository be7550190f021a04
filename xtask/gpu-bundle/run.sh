#!/bin/sh
# Checks and measures this machine's GPU, the most important first, within so many minutes. Ends with status 1 if a check fails.
#
#   run.sh [--minutes N] [--device cuda|cpu] [--quick] [--no-bench] [--sanitizer] [--out FOLDER]
#
# --minutes    what everything together may take (by default 25); pieces that no time is left for are named at the end
# --quick      short forms of the long ones
# --no-bench   checks only
# --sanitizer  the operations once more under compute-sanitizer's memcheck
# --out        where rows go as JSON lines, each as soon as it is there (by default ./out beside this script)
set -u
here=$(cd "$(dirname "$0")" && pwd)
device=cuda quick='' bench=yes sanitizer='' out="$here/out" minutes=25
while [ $# -gt 0 ]; do
    case $1 in
    --minutes) minutes=$2 && shift ;;
    --minutes=*) minutes=${1#*=} ;;
    --device) device=$2 && shift ;;
    --device=*) device=${1#*=} ;;
    --quick) quick=--quick ;;
    --no-bench) bench='' ;;
    --sanitizer) sanitizer=yes ;;
    --out) out=$2 && shift ;;
    -h | --help)
        sed -n '2,11s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    *)
        echo "run.sh: unknown option $1; --help lists them" >&2
        exit 2
        ;;
    esac
    shift
done
mkdir -p "$out" || exit 2
# What one piece compiles the others find.
if [ -z "${BURNISH_KERNEL_CACHE:-}" ] && mkdir -p "$here/kernels" && chmod go-w "$here/kernels"; then
    export BURNISH_KERNEL_CACHE="$here/kernels"
fi
out=$(cd "$out" && pwd)
end=$(($(date +%s) + minutes * 60))
status=0
: >"$out/pieces.txt"

# A piece has a limit of its own and what is left of all: a hung kernel costs one piece. What it wrote until then stays.
limited() {
    seconds=$1
    shift
    if command -v timeout >/dev/null; then timeout -k 10 "$seconds" "$@"; else "$@"; fi
}

# piece NAME MOST-SECONDS COMMAND...
piece() {
    name=$1 most=$2
    shift 2
    left=$((end - $(date +%s)))
    if [ "$left" -lt 20 ]; then
        echo "no time   $name" >>"$out/pieces.txt"
        return
    fi
    [ "$most" -lt "$left" ] || most=$left
    echo "== $name (at most $most s of $left s)"
    began=$(date +%s)
    code=0
    limited "$most" "$@" || code=$?
    case $code in
    0) word='done   ' ;;
    124 | 137) word='cut off' ;;
    *) word='FAILED ' status=1 ;;
    esac
    echo "$word   $name, $(($(date +%s) - began)) s" >>"$out/pieces.txt"
}

# checks MOST-SECONDS GROUP [NAMES-THAT-HOLD]
checks() {
    most=$1 group=$2 only=${3:-}
    rows="$out/checks-$(echo "$group $only" | tr -cs 'A-Za-z0-9\n' - | sed 's/-*$//').jsonl"
    # Tuning tries few kernels there: what is right does not depend on which one runs, and compiling is most of the time.
    cd "$here/checks" || exit 2
    piece "checks: $group${only:+, $only}" "$most" "$here/bin/burnish-check" "$group" --device "$device" \
        --data "$here" --only "$only" --json "$rows" $quick
    cd "$here" || exit 2
}

# spread MOST-SECONDS GROUP: a group's checks by eight processes beside each other, which take processor time above all.
spread() {
    most=$1 group=$2
    cd "$here/checks" || exit 2
    piece "checks: $group" "$most" sh -c '
        status=0 all=""
        for part in 1 2 3 4 5 6 7 8; do
            "$0" "$1" --device "$2" --data "$3" --part "$part/8" --json "$4/checks-$1-$part.jsonl" $5 &
            all="$all $!"
        done
        for one in $all; do wait "$one" || status=1; done
        exit $status' "$here/bin/burnish-check" "$group" "$device" "$here" "$out" "$quick"
    cd "$here" || exit 2
}

# measured MOST-SECONDS NAME: burnish, then PyTorch where it is, on one benchmark.
measured() {
    [ -n "$bench" ] || return 0
    if command -v python3 >/dev/null; then
        piece "bench: $2" "$1" python3 "$here/gpu.py" --burnish "$here/bin/burnish-check" --data "$here" \
            --device "$device" --only "$2" --out "$out/bench.jsonl" $quick
    else
        piece "bench: $2" "$1" "$here/bin/burnish-check" bench --device "$device" --data "$here" --only "$2" \
            --json "$out/bench-$(echo "$2" | tr -c 'A-Za-z0-9\n' -).jsonl" $quick
    fi
}

machine() {
    date -u
    uname -srm
    "$here/bin/burnish" --version
    nvidia-smi --query-gpu=name,driver_version,memory.total,power.limit,clocks.max.sm --format=csv,noheader 2>/dev/null
    limited 90 "$here/bin/burnish" doctor --device "$device"
}
rm -f "$out"/*.jsonl
machine 2>&1 | tee "$out/machine.txt"

if [ -n "$quick" ]; then
    small='tiny LoRA' full='tiny full' decoded=decodes middle='' mixture='' delta=''
else
    small='0.6B LoRA' full='0.6B full' decoded='0.6B decodes' middle=1.7B mixture='12 layers' delta='Qwen3.5-0.8B'
fi
# Whether it is right at all, one of each kind; then how fast, and what no interpreter shows; then all that is checked without a GPU too.
for only in 'norm, three side by side, bf16, 130 x 64' 'SwiGLU, residual, bf16, 130 x 64' 'causal, packed, bf16' \
    'head loss, bf16' 'head likelihood, bf16' 'LoRA, bf16, 130 x 64' 'AdamW'; do
    checks 60 operation "$only"
done
measured 240 "$small"
checks 240 memory
spread 180 decoding
measured 120 attention
measured 180 "$decoded"
measured 120 'head '
spread 150 TRL
spread 400 operation
[ -z "$mixture" ] || measured 240 "$mixture LoRA"
[ -z "$delta" ] || measured 180 "$delta LoRA"
[ -z "$mixture" ] || measured 180 "$mixture decodes"
measured 240 "$full"
[ -z "$middle" ] || measured 240 "$middle"
checks 60 resume
checks 90 nccl
checks 90 ranks
if [ -n "$sanitizer" ]; then
    cd "$here/checks" || exit 2
    piece sanitizer 600 compute-sanitizer --tool memcheck --error-exitcode 1 --log-file "$out/sanitizer.txt" \
        "$here/bin/burnish-check" --device "$device" --data "$here" operation
    cd "$here" || exit 2
fi

echo
[ ! -s "$out/bench.jsonl" ] || python3 "$here/gpu.py" --table "$out/bench.jsonl" || true
cat "$out/pieces.txt"
found=$(cat "$out"/checks-*.jsonl 2>/dev/null)
count() { echo "$found" | grep -c "\"verdict\":\"$1\""; }
echo "$(count passed) checks passed, $(count FAILED) failed, $(count 'left out') left out; rows are in $out"
echo "$found" | grep '"verdict":"FAILED"' | cut -c1-400
exit $status
