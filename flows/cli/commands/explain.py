"""`atelier corpus explain <corpus> <document>`: why a document is, or is not, in a curated corpus."""

import json
from argparse import Namespace
from dataclasses import asdict

from atelier.engine.config.error import ConfigError
from atelier.flows.run.store_check import open_store
from atelier.infra.report.explain import explain, sample


def run(options: Namespace) -> int:
    """Print the verdicts. Returns the exit code."""
    if bool(options.document) == bool(options.sample):
        raise ConfigError(
            "document", "give a document, or --sample", "atelier explain stdlib-prose --sample 5"
        )
    store = open_store()
    if options.sample:
        if not options.sample.isdigit() or options.sample == "0":
            raise ConfigError("--sample", f"{options.sample!r} is not a whole number above 0", "--sample 20")
        found = sample(store, options.corpus, int(options.sample), options.reason or "")
    else:
        found = explain(store, options.corpus, options.document)
    if options.json:
        print(json.dumps([asdict(answer) for answer in found], indent=1, ensure_ascii=False))
    else:
        print("\n".join(line for answer in found for line in answer.words()))
    return 0
