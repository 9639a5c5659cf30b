"""Pass Hydra's own flags to Hydra: --cfg, --info, --hydra-help and their companions."""

import sys

from atelier.engine.config.error import ConfigError
from atelier.flows.run.catalog import CONF, parameters

ASKING = ("--cfg", "-c", "--info", "-i", "--hydra-help")
BESIDE = (
    "--resolve",
    "--package",
    "-p",
    "--config-dir",
    "-cd",
    "--config-name",
    "-cn",
    "--config-path",
    "-cp",
    "--shell-completion",
    "-sc",
    "--run",
    "-r",
)


def is_asked(words: list[str]) -> bool:
    """Whether the words have a flag that Hydra must answer. Raises ConfigError for a flag that works only
    beside one of those.
    """
    names = [word.split("=", 1)[0] for word in words]
    if any(name in ASKING for name in names):
        return True
    alone = [name for name in names if name in BESIDE]
    if alone:
        raise ConfigError(
            f"atelier {alone[0]}",
            "works only with --cfg, --info or --hydra-help",
            "a flow's own options are yaml files in conf/<group>/",
        )
    return False


def answer(flow: str, words: list[str]) -> int:
    """Run hydra.main on the flow's configuration, with overrides as in a run. Returns the exit code."""
    import hydra  # late: 0.15 s that help and completion do not need

    from atelier.flows.run.hydra_document import prepared as prepared

    known = [*parameters(flow).model_fields, "pool", "tracker"]
    ready = [
        prepared(word, flow, known) if "=" in word and not word.startswith("-") else word for word in words
    ]
    before, sys.argv = sys.argv, [f"atelier {flow}", *ready]
    try:
        hydra.main(config_path=str(CONF), config_name=flow, version_base="1.3")(lambda config: None)()
    except SystemExit as left:
        return 2 if left.code else 0
    finally:
        sys.argv = before
    return 0
