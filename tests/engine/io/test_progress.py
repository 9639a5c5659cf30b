import io
import json

from atelier.engine.io.process import Progress


def test_progress_speaks_at_most_twice_a_second_and_says_the_rate():
    now = [0.0]
    stream = io.StringIO()
    progress = Progress(stream, clock=lambda: now[0])
    progress.start(100, "documents")
    for _ in range(100):
        now[0] += 0.1
        progress.advance(1)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert 18 <= len(lines) <= 21
    assert all(set(line) == {"progress", "total", "unit", "rate"} for line in lines)
    assert all(line["total"] == 100 and abs(line["rate"] - 10) < 0.2 for line in lines)
