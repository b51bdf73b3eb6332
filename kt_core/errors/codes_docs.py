"""KT750-KT759: pages, documentation and schemas that kt writes."""

from __future__ import annotations

from kt_core.errors.codes import Code

CODES = (
    Code(
        "KT750",
        "There is no such topic",
        "kt docs takes the name of a page, an error code, or a heading of a reference page such as a "
        "command's, an operator's or a kernel's name. The message names the pages in which the word "
        "occurs. Without a topic, kt docs lists all pages.",
        'KT750 "quickstrat" is not a topic\n'
        "  topics: index, quick-start, plans, migration, errors\n"
        "  help: did you mean kt docs quick-start?",
    ),
    Code(
        "KT751",
        "The plan's page cannot be written",
        "kt plan --html writes a new file, or over a page that it wrote before. Anything else that "
        "is there already is left alone, so that a slip of the hand does not cost a weight file. "
        "Name another file, or one in a folder that you may write to.",
        "KT751 model.gguf is there already, and it is no page of kt plan\n"
        "  help: name another file: --html plan.html",
    ),
    Code(
        "KT752",
        "The built site is not there",
        "kt docs --browser opens the site that make docs writes into site/ of a checkout. A wheel "
        "carries the pages, but not the site; kt docs TOPIC shows each of them in the terminal. "
        "KT_DOCS_SITE names a folder with the site that was built elsewhere.",
        "KT752 there is no built site of the documentation here\n"
        "  help: in a checkout: make docs; elsewhere: KT_DOCS_SITE=FOLDER kt docs --browser",
    ),
)
