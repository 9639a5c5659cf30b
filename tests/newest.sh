#!/usr/bin/env bash
# The quick tests with the newest versions that pyproject.toml allows, in an environment of their own: what a user gets
# who installs without constraints.txt. Lists what differs from the pins. Exit code 0 also where no index answers.
set -u
cd "$(dirname "$0")/.."
PYTHON="${PYTHON:-${VENV:-.venv}/bin/python}"
[ -x "$PYTHON" ] || { echo "newest: no $PYTHON; run make setup" >&2; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$PYTHON" -m venv "$folder/env" || { echo "newest: skipped, no environment can be made" >&2; exit 0; }
new="$folder/env/bin/python"
pip() { "$new" -m pip --disable-pip-version-check "$@"; }
if ! pip download --quiet --no-deps --dest "$folder" hatchling >/dev/null 2>&1; then
  echo "newest: skipped, no package index answers here"
  exit 0
fi
if ! pip install --quiet -e '.[dev]' ${NEWEST_ARGUMENTS:-} 2>"$folder/err"; then
  tail -5 "$folder/err" >&2
  echo "newest: the newest versions cannot be installed together" >&2
  exit 1
fi
echo "newest: versions that differ from constraints.txt (pinned -> newest)"
pip freeze --exclude-editable | "$new" -c '
import re, sys
def read(lines):
    found = (line.strip().split("==") for line in lines if "==" in line)
    return {re.sub("[-_.]+", "-", name).lower(): version for name, version in found}
pinned, newest = read(open("constraints.txt")), read(sys.stdin)
for name in sorted(newest):
    if pinned.get(name) != newest[name]:
        print(f"  {name}: {pinned.get(name, chr(45))} -> {newest[name]}")
'
quick="not root and not service and not browser and not slow and not bench and not gpu"
if tests/in_memory.sh "$new" -m pytest ${NEWEST_TESTS:-tests} -n "${JOBS:-3}" --dist loadfile --no-loadscope-reorder -m "$quick" \
  -o tmp_path_retention_policy=failed; then
  echo "newest: the quick tests are green with them"
else
  echo "newest: something is red with them, see above: narrow the range in pyproject.toml, or mend it" >&2
  exit 1
fi
