"""``matrix.md``: the page in Markdown that also reads well in a terminal."""

from __future__ import annotations

from aorta.matrix.aggregate import Matrix
from aorta.matrix.page import build_page
from aorta.matrix.text import escape_markdown, markdown_table


def render_markdown(matrix: Matrix) -> str:
    """Returns the text of ``matrix.md``, with a newline at its end."""
    page = build_page(matrix)
    lines = [f"# {escape_markdown(page.title)}", "", f"**{escape_markdown(page.verdict)}**", ""]
    lines += markdown_table(page.header, page.rows, page.right)
    for title, entries in page.sections:
        lines += ["", f"## {title}", ""]
        lines += [f"- {escape_markdown(entry)}" for entry in entries]
    return "\n".join(lines) + "\n"
