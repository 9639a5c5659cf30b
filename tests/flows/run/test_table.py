import pytest

from atelier.flows.run.table import plain_console, print_table


def test_what_is_piped_keeps_its_brackets_and_whole_lines(capsys: pytest.CaptureFixture[str]) -> None:
    line = "atelier score models=[a,b] " + "word " * 100 + "end"
    plain_console().print(line)
    assert capsys.readouterr().out == line + "\n"


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_table_that_is_wider_than_the_terminal_is_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, term: str
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", term)
    columns, row = (
        ("of", "why", "bytes of a part", "seconds"),
        ("the model " * 8, "word " * 30, "12345678 kB", "1.5 s"),
    )
    print_table(columns, [row], right=columns[2:], flexible="why")
    lines = capsys.readouterr().out.splitlines()
    for cell in (*columns, *row[:1], *row[2:]):
        assert any(cell in line for line in lines), cell
    assert sum(line.count("word") for line in lines) == 30 and len(lines) < 12
