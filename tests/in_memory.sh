#!/usr/bin/env bash
# Run a command whose temporary files are in memory where there is room (4 GB), and remove them afterwards:
# tests write and sync tens of thousands of files.
place=/dev/shm
free() { df -Pk $place 2>/dev/null | awk 'NR == 2 {print $4}'; }
memory() { awk '/^MemAvailable/ {print $2}' /proc/meminfo 2>/dev/null; }
[ -w $place ] && [ "$(free)" -gt 4000000 ] && [ "$(memory)" -gt 8000000 ] || place="${TMPDIR:-/tmp}"
TMPDIR="$(mktemp -d "$place/atelier-tests-XXXXXX")" || exit 1
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
"$@"
