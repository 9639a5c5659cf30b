"""Reading a WARC archive, beside FastWARC with Resiliparse in one process: CPU-seconds per MB of HTML.

python benchmarks/pages.py [--pages 600] [--rounds 5]

The pages are those of pydoc for the standard library, served with gzip, in an archive packed by record. Both
extract the same texts, or the run fails. Atelier also checks frames of records and the digest of the archive,
and extracts in a separate process with limits.
"""

import argparse
import gzip
import io
import pkgutil
import pydoc
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP / "src"), str(TOP), str(Path(__file__).parent)]

from fastwarc.warc import ArchiveIterator
from machine import keep
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import bytes_to_str

from atelier.engine.config.data import Source
from atelier.engine.data.source import documents
from atelier.engine.data.source_reader import SourceReader
from atelier.engine.io.process import Progress
from atelier.engine.io.source_files import content_id
from tests.budget import spent
from tests.engine.data.archives import record, served


def pages(count: int) -> list[str]:
    """pydoc's pages of modules that can be imported, in order of their names, repeated if there are fewer."""
    found: list[str] = []
    warnings.simplefilter("ignore")
    for name in sorted(
        module.name for module in pkgutil.iter_modules() if module.name in sys.stdlib_module_names
    ):
        if name in ("antigravity", "this", "idlelib", "turtledemo"):
            continue
        try:
            found.append(pydoc.HTMLDoc().page(name, pydoc.HTMLDoc().document(pydoc.safeimport(name))))
        except Exception:  # a module that cannot be imported here
            continue
    return (found * (count // len(found) + 1))[:count]


def ours(path: str) -> list[str]:
    source = Source(source=path)
    with SourceReader(on_error="stop", place="data", progress=Progress(io.StringIO())) as reader:
        return [each.text for each in documents(source, [(path, content_id(path))], reader)]


def theirs(path: str) -> list[str]:
    found = []
    with open(path, "rb") as file:
        for each in ArchiveIterator(file, parse_http=True, auto_decode="all"):
            html = bytes_to_str(each.reader.read(), "utf-8")
            found.append(extract_plain_text(html, preserve_formatting=True, main_content=True))
    return found


def cpu_s(read: Callable[[str], list[str]], path: str) -> tuple[float, list[str]]:
    """Processor seconds of this process and the ended ones it started."""
    before = spent()
    texts = read(path)
    return spent() - before, texts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    html = pages(asked.pages)
    size = sum(len(page.encode()) for page in html) / 1e6
    taken: dict[str, list[float]] = {"atelier": [], "fastwarc": []}
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/pages.warc.gz"
        with open(path, "wb") as file:
            for page in html:
                body = served(
                    gzip.compress(page.encode()), "Content-Encoding: gzip", media="text/html; charset=utf-8"
                )
                file.write(gzip.compress(record(body)))
        for number in range(asked.rounds):
            order = [("atelier", ours), ("fastwarc", theirs)][:: 1 if number % 2 else -1]
            texts = {}
            for name, read in order:
                seconds, texts[name] = cpu_s(read, path)
                taken[name].append(seconds / size)
            assert texts["atelier"] == texts["fastwarc"], "the texts differ"
    result = {
        "pages": len(html),
        "megabytes": round(size, 2),
        "cpu_s_per_mb": {name: round(statistics.median(all_of), 4) for name, all_of in taken.items()},
    }
    keep("pages", result)
    print(result)


if __name__ == "__main__":
    main()
