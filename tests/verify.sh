#!/usr/bin/env bash
# What `make test` leaves out: tests that need root, strace, services, a browser or patience, the mutants, then the quick
# tests with the newest versions of libraries (tests/newest.sh).
# What had to be left out here too is said at the end, with the reason. Two hours and more on two cores.
set -u
cd "$(dirname "$0")/.."
PYTHON="${PYTHON:-${VENV:-.venv}/bin/python}"
[ -x "$PYTHON" ] || { echo "verify: no $PYTHON; run make setup" >&2; exit 2; }
marks="not bench"
left=("what make test runs" "timings and long comparisons: make bench" "containers, half an hour: infra/docker/verify")
leave_out() { marks="$marks and not $1"; left+=("tests marked $1: $2"); }

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  missing=()
  for program in strace chromium; do command -v "$program" >/dev/null || missing+=("$program"); done
  command -v sbatch >/dev/null || missing+=(slurm-wlm munge)
  command -v swift-proxy-server >/dev/null || missing+=(swift-proxy swift-account swift-container swift-object memcached)
  ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing+=(postgresql)
  [ ${#missing[@]} = 0 ] || { apt-get update -qq && apt-get install -y -qq "${missing[@]}" fonts-dejavu-core; }
fi
command -v strace >/dev/null || left+=("kills and errors at every system call: strace is missing")
[ "$(id -u)" = 0 ] || leave_out root "this is not root"
"$PYTHON" -c "import sys, torch; sys.exit(not torch.cuda.is_available())" || leave_out gpu "torch sees no GPU"
if ! "$PYTHON" -c "import playwright" 2>/dev/null || ! command -v chromium >/dev/null; then
  leave_out browser "chromium or playwright is missing"
fi

failed=0
tests() {  # -vv: a line a test, as it ends; folders of tests that went well would come to 15 GB
  "$PYTHON" -m pytest "$@" -vv -rs --durations=25 -o tmp_path_retention_policy=failed
}
part() { tests "$@" || failed=1; echo "verify: after $((SECONDS / 60)) min"; }
clusters=(tests/service/test_slurm{,_array,_cluster,_served}.py)
stores=(tests/service/test_{installed,s3,swift,leases,sweep}.py)
beside=()  # process ids and outputs of parts that wait, mostly: beside each other
start() { beside+=("$(mktemp)"); tests "$@" >"${beside[-1]}" 2>&1 & beside+=($!); }
part tests --ignore tests/parity -n "${JOBS:-3}" --dist loadfile -m "$marks and (slow or root or gpu) and not service and not browser"
part tests/parity -m "$marks and (slow or gpu)"  # gangs of up to eight ranks: one at a time
start "${clusters[@]}" -m "$marks"
start "${stores[@]}" -m "$marks"
part tests -m "$marks and (service or browser)" "${clusters[@]/#/--ignore=}" "${stores[@]/#/--ignore=}"
"$PYTHON" tests/mutants/run.py || failed=1
bash tests/newest.sh || failed=1
for ((n = 0; n < ${#beside[@]}; n += 2)); do
  wait "${beside[n + 1]}" || failed=1
  cat "${beside[n]}"
  rm "${beside[n]}"
done
echo "verify: after $((SECONDS / 60)) min"
echo "left out:"
printf '  %s\n' "${left[@]}"
echo "  and each test listed as SKIPPED above, with its reason"
[ "$failed" = 0 ] && echo "verify: all of it is green" || echo "verify: something is red, see above"
exit "$failed"
