import pytest

from atelier.flows.run.table import plain_console


def test_what_is_piped_keeps_its_brackets_and_whole_lines(capsys: pytest.CaptureFixture[str]) -> None:
    line = "atelier score models=[a,b] " + "word " * 100 + "end"
    plain_console().print(line)
    assert capsys.readouterr().out == line + "\n"
