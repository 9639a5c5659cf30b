"""Write infra/code/moved_code.yaml, the table of moved code: python benchmarks/moved_code.py FOLDER

FOLDER is a checkout of the commit before the move. An old file maps to the files that now have one of its
functions or classes, and to itself if it still exists. Write the table only for a move that changed no
result: compare the digests of artifacts first (CONTRIBUTING.md, "Moving code").
"""

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
TABLE = HERE / "infra" / "code" / "moved_code.yaml"
HEAD = """\
# One move of code: digests of files before the move and the files that they became, and digests after it.
# Only imports, names and places changed; see CONTRIBUTING.md. Read by infra/code/code_change.py.
"""
# prints the code maps of all tasks with all kinds and all extensions, as one
MAPS = """
import json, sys
from pathlib import Path
from atelier.infra.code.code_map import REGISTRIES, ROOTS, code_map
top = Path(sys.argv[1])
kinds = [
    f"{folder.removeprefix('config/')}/{file.stem}"
    for folder in REGISTRIES
    for place in (top / "engine", *(top / "engine/extensions").glob("*"))
    for file in (place / folder).glob("[!_]*.py")
]
hooks = [str(file.relative_to(top)) for file in sorted((top / "engine/extensions").glob("*/hook.py"))]
found = {}
for roots in ROOTS.values():
    found |= code_map((*roots, *hooks), kinds)
print(json.dumps(found))
"""
Map = dict[str, dict[str, str]]


def maps_of(folder: Path) -> Map:
    """The code of every task in a checkout: file -> function, class or method -> digest."""
    run = [sys.executable, "-c", MAPS, str(folder)]
    env = {"PYTHONPATH": f"{folder / 'src'}:{folder}", "PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
    return json.loads(subprocess.run(run, cwd=folder, env=env, check=True, stdout=subprocess.PIPE).stdout)


def targets(before: Map, now: Map) -> dict[str, list[str]]:
    """The files that each file of before went to."""
    places: dict[tuple[str, str], set[str]] = defaultdict(set)
    for file, parts in now.items():
        for part, digest in parts.items():
            places[part, digest].add(file)
    found: dict[str, list[str]] = {}
    for file, parts in before.items():
        went = {file} & now.keys()
        for part in (part for part in parts.items() if part[0]):
            went |= places[part] if file not in places[part] else {file}
        found[file] = sorted(went)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="a checkout of the commit before the move")
    asked = parser.parse_args()
    sys.path[:0] = [str(HERE / "src"), str(HERE)]
    from atelier.infra.code.code_change import files_of

    before, now = maps_of(asked.folder.resolve()), maps_of(HERE)
    went_to, old, new = targets(before, now), files_of(before), files_of(now)
    lines = [HEAD, "before:\n"]
    lines += [f'  {file}: "{" ".join((old[file], *went_to[file]))}"\n' for file in sorted(old)]
    lines += ["after:\n", *(f'  {file}: "{new[file]}"\n' for file in sorted(new))]
    TABLE.write_text("".join(lines))
    changed = sum(old[file] != new.get(file) for file in old)
    print(f"{len(old)} files before, {changed} of them changed or gone; {len(new)} now: {TABLE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
