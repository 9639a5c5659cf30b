from dataclasses import dataclass, field
from typing import Any
import json
from pathlib import Path
@dataclass(frozen=True)
class ReportContent:
    title: str; command: str; rows: list; curves: dict; samples: dict; graph: Any; notes: list; controls: dict; starts: dict
def write_report(folder, content):
    p=Path(folder)/"table.json"; p.write_text(json.dumps(content.rows)); return [p]
