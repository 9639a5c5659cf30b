"""learn_tokenizer: learn a byte-level BPE vocabulary from the training documents of all corpora, or load a
given tokenizer.json.
"""

from collections.abc import Mapping
from dataclasses import replace

from atelier.engine.config.base import Json
from atelier.engine.config.data import AdoptedEnds, Tokenizer
from atelier.engine.config.task.prepare import TokenizerConfig
from atelier.engine.io.hub import pinned
from atelier.engine.io.source_files import check_no_password
from atelier.infra.dag import Reference, declare_one
from atelier.infra.store.existing_model import existing_model
from atelier.infra.store.source_contents import contents_of

VERSION = 1
MODULE = "atelier.engine.prepare"
MOST_BYTES = 1 << 30  # of a loaded tokenizer.json; today's have at most 30 MB


def learn_tokenizer(
    corpora: dict[str, Reference],
    tokenizer: Tokenizer,
    texts: AdoptedEnds | None = None,
    *,
    extends: Reference | None = None,
    before: Mapping[str, Reference] | None = None,
    name: str = "learn_tokenizer",
) -> Reference:
    """The tokenizer. A loaded one has its content as identity and no parents; a finished model's tokenizer
    exists already. `texts`: how that model's texts begin and end. `extends`: the tokenizer that is extended;
    the summary then compares how both split the text of `before`.
    """
    if tokenizer.model:
        return existing_model(tokenizer.model, "tokenizer.model").tokenizer
    if tokenizer.extend:
        extends = existing_model(tokenizer.extend, "tokenizer.extend").tokenizer
    files: list[tuple[str, str]] = []
    if tokenizer.load:
        check_no_password(tokenizer.load, "tokenizer.load")
        tokenizer = tokenizer.model_copy(update={"load": pinned(tokenizer.load, "tokenizer.load")})
        files = contents_of([tokenizer.load], place="tokenizer.load", most=MOST_BYTES)
        identity: dict[str, Json] = {"sha256": files[0][1]}
        if texts is not None:
            identity["texts"] = texts.told()
        parents = inputs = dict[str, Reference]()
    else:
        identity = {"vocab": tokenizer.vocab}
        if tokenizer.specials:
            identity["specials"] = list(tokenizer.specials)
        parents = {f"corpus.{name}": corpus for name, corpus in corpora.items()}
        inputs = {f"corpus_{i}": corpus for i, corpus in enumerate(corpora.values())}
        if extends is not None:
            parents["extends"] = inputs["extends"] = extends
            inputs |= {f"before_{key}": corpus for key, corpus in (before or {}).items()}
    made = declare_one(
        "learn_tokenizer",
        "tokenizer",
        parents,
        name="tokenizer",
        version=VERSION,
        node=name,
        identity=identity,
        origin={"vocab": "tokenizer.vocab", "specials": "tokenizer.specials", "sha256": "tokenizer.load"},
        inputs=inputs,
        config=TokenizerConfig(tokenizer=tokenizer, files=tuple(files), texts=texts),
    )
    return replace(made, is_begun=extends is not None and extends.is_begun)
