"""What a person asks for by ``kt docs WORD``: a page, an error code or a section of a reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kt_core.errors import UsageError
from kt_core.errors.catalogue import find
from kt_core.errors.codes import Code
from kt_core.manual.pages import Page, Section


@dataclass(frozen=True)
class Answer:
    """A page, and the section of it that was asked for; ``code`` where it was an error code."""

    page: Page
    section: Section | None = None
    code: Code | None = None

    @property
    def text(self) -> str:
        """The Markdown to show."""
        return self.page.text if self.section is None else self.section.text


def look_up(word: str, pages: Mapping[str, Page]) -> Answer:
    """Return what ``word`` means.

    Raises:
        UsageError: KT750, with the nearest names and the pages that mention the word.
    """
    wanted = _plain(word)
    for name, page in pages.items():
        if wanted in (_plain(name), _plain(page.title)):
            return Answer(page)
    code = find(word)
    if code is not None:
        page = pages["errors"]
        section = next(s for s in page.sections() if s.title.startswith(f"{code.id}:"))
        return Answer(page, section, code)
    for page in pages.values():
        for section in page.sections():
            if wanted in (_plain(section.title), _plain(section.title.removeprefix("kt "))):
                return Answer(page, section)
    raise _unknown(word, pages)


def mentions(word: str, pages: Mapping[str, Page]) -> Iterator[str]:
    """Names of the written pages in which ``word`` occurs."""
    wanted = word.casefold()
    for name, page in pages.items():
        if not page.generated and wanted in page.text.casefold():
            yield name


def _unknown(word: str, pages: Mapping[str, Page]) -> UsageError:
    from kt_core.rules.suggest import did_you_mean
    from kt_core.rules.text import show

    titles = [
        section.title.removeprefix("kt ") for page in pages.values() for section in page.sections()
    ]
    near = did_you_mean(word, [*pages, *titles])
    found = list(mentions(word, pages)) if len(word) > 2 else []
    facts = [f"pages that mention it: {', '.join(found)}"] if found else []
    facts.append(f"topics: {', '.join(pages)}")
    if near is not None:
        help_ = f"did you mean kt docs {show(near) if ' ' in near else near}?"
    else:
        help_ = f"kt docs {found[0]}" if found else "kt docs lists all topics"
    return UsageError.of("KT750", f"{show(word)} is not a topic", facts=facts, help=help_)


def _plain(text: str) -> str:
    return text.strip().casefold().replace("_", "-").replace(" ", "-").removesuffix(".md")
