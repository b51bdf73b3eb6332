"""KT740-KT749: pages, documentation and schemas that kt writes."""

from __future__ import annotations

from kt_core.errors.codes import Code

CODES = (
    Code(
        "KT741",
        "The plan's page cannot be written",
        "kt plan --html writes a new file, or over a page that it wrote before. Anything else that "
        "is there already is left alone, so that a slip of the hand does not cost a weight file. "
        "Name another file, or one in a folder that you may write to.",
        "KT741 model.gguf is there already, and it is no page of kt plan\n"
        "  help: name another file: --html plan.html",
    ),
)
