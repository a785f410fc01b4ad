"""``matrix.html``: the page as one file for a browser, with nothing to load from elsewhere."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, StrictUndefined, Template

from aorta.matrix.aggregate import Matrix
from aorta.matrix.page import build_page


@cache
def _template() -> Template:
    source = Path(__file__).with_name("matrix.html.jinja").read_text("utf-8")
    # Every text in the page comes from a recipe or a trial, so all of it is escaped.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(source)


def render_html(matrix: Matrix) -> str:
    """Returns the text of ``matrix.html``, with a newline at its end."""
    return _template().render(page=build_page(matrix)) + "\n"
