"""What HTML pages share: figures by place, and the environment of the templates."""

import json
import re
from dataclasses import dataclass, field

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from archsim.report.document import clean
from archsim.report.figures import Figure


@dataclass(eq=False)
class Figures:
    """Figures by the id of their place on the page."""

    by_id: dict[str, Figure] = field(default_factory=dict)

    def add(self, figure: Figure) -> dict[str, object]:
        """Keeps a figure; what the template needs to place it."""
        name = f"figure-{len(self.by_id) + 1}"
        self.by_id[name] = figure
        return {"id": name, "height": figure["layout"]["height"]}

    def as_json(self) -> Markup:
        """All figures as JSON that is safe inside a script element."""
        text = json.dumps(clean(self.by_id), sort_keys=True, allow_nan=False)
        for character in "<>&'":
            text = text.replace(character, f"\\u{ord(character):04x}")
        return Markup(text)


def environment() -> Environment:
    """The environment that renders the templates of this room."""
    found = Environment(
        loader=PackageLoader("archsim.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["together"] = together
    return found


def together(text: str) -> str:
    """Text whose numbers stay on the line of their units."""
    return re.sub(r"(?<=\d) (?=[A-Za-z%])", "\u00a0", text)
