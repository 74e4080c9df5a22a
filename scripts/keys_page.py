"""Write the table of keys into a page: python scripts/keys_page.py docs/KEYS.md."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fwtop.ui.keys import ACTIONS

page = Path(sys.argv[1])
rows = "".join(f"| `{row.label}` | {row.help} |\n" for row in ACTIONS if row.label)
page.write_text(re.sub(r"(?<=\|---\|---\|\n)(\|.*\n)+", lambda _: rows, page.read_text(), count=1))
