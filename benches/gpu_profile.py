#!/usr/bin/env python3
"""Where a GPU's time went, from the rows of gpu_profile.c.

    gpu_profile.py ROWS [--between NAME] [--which 1] [--top 40]

With `--between` a step is what lies between two runs of kernels whose name holds NAME, such as the optimizer's `update_`; `--which` is how
many such steps from the end (1: the last whole one). Without it everything is summed.
"""

import argparse
from collections import defaultdict


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows")
    parser.add_argument("--between", default="")
    parser.add_argument("--which", type=int, default=1)
    parser.add_argument("--top", type=int, default=40)
    options = parser.parse_args()
    rows = []
    with open(options.rows, encoding="utf-8", errors="replace") as file:
        for line in file:
            parts = line.rstrip("\n").split(" ", 3)
            if len(parts) == 4 and parts[0].isdigit() and parts[1].isdigit():
                rows.append((int(parts[0]), int(parts[1]), int(parts[2]), parts[3]))
    rows.sort()
    if options.between:
        marks, last = [], 0
        for at, row in enumerate(rows):
            now = options.between in row[3]
            # Fewer than 300 other kernels between two of them are the same run of them.
            if now and (not marks or at - last > 300):
                marks.append(at)
            if now:
                last = at
        if len(marks) > options.which:
            rows = rows[marks[-1 - options.which]:marks[-options.which]]
    wall = (max(row[1] for row in rows) - rows[0][0]) / 1e6
    # A gap belongs to the row that ends it.
    sums, reached, idle = defaultdict(lambda: [0, 0.0, 0.0, 0]), rows[0][0], 0.0
    for start, end, size, name in rows:
        found = sums[name]
        gap = max(0, start - reached) / 1e6
        found[0] += 1
        found[1] += (end - start) / 1e6
        found[2] += gap
        found[3] += size
        idle += gap
        reached = max(reached, end)
    print(f"{len(rows)} rows, wall {wall:.2f} ms, busy {wall - idle:.2f}, idle {idle:.2f}")
    for name, (count, time, gap, size) in sorted(sums.items(), key=lambda item: -item[1][1])[:options.top]:
        moved = f", {size / 1e6:.1f} MB" if size else ""
        print(f"{time:9.2f} ms {count:6} {1e3 * time / count:9.1f} us {100 * time / wall:5.1f}%  gap before {gap:7.2f} ms  {name}{moved}")


if __name__ == "__main__":
    main()
