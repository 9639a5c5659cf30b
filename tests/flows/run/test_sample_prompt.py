"""The prompt of the sample text fits the corpus."""

from pathlib import Path

import pytest

from atelier.flows.run.compose import compose


@pytest.mark.parametrize(
    ("words", "sample"),
    [
        ([], "def "),
        (["data=small"], "def "),
        (["data.source=/texts/*.txt"], ""),  # the first words of the held-out text
        (["data.source=/texts/*.txt", "score.sample=Once"], "Once"),
    ],
)
def test_pythons_prompt_is_for_the_standard_library_alone(
    words: list[str], sample: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    document = compose("pretrain", ["experiment=tiny", *words]).document
    assert document["score"]["sample"] == sample
