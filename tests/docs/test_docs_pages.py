"""The pages as a whole: links lead somewhere, generated ones hold everything, the site builds."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from html import unescape
from importlib.util import find_spec

import pytest

from kt_core.cli.main import COMMANDS
from kt_core.errors.catalogue import codes
from kt_core.manual.pages import NAVIGATION, all_pages, generated_pages, navigation, written_pages
from kt_core.rules import schema_text


@pytest.fixture(scope="module")
def pages(all_distributions):
    return all_pages(all_distributions)


def test_links_lead_to_pages_sections_and_pictures(pages, repository):
    anchors = {
        name: {slug(section.title) for section in page.sections()}
        | set(re.findall(r"^\(([\w-]+)\)=$", page.text, re.MULTILINE))
        for name, page in pages.items()
    }
    for name, page in pages.items():
        text = re.sub(r"^```.*?^```", "", page.text, flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"(?<!`)\]\(([^)\s]+)\)", text):
            if target.startswith(("https://", "mailto:")):
                continue
            file, _, anchor = target.partition("#")
            if file.endswith(".png"):
                assert (repository / "docs" / file).is_file(), (name, target)
                continue
            other = file.removesuffix(".md") or name
            assert other in pages, (name, target)
            assert not anchor or anchor in anchors[other], (name, target)


def slug(title):
    return re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-")


def test_every_page_has_one_title_and_a_first_sentence(pages):
    for name, page in pages.items():
        levels = [section.level for section in page.sections()]
        assert levels.count(1) == 1, name
        assert levels[0] == 1, name
        assert name == "changelog" or page.summary, name


def test_navigation_names_every_page_once(pages):
    named = [name for names in navigation(pages).values() for name in names]
    assert sorted(named) == sorted(pages)
    assert {name for names in NAVIGATION.values() for name in names} >= set(generated_pages_names())


def generated_pages_names():
    return ("rule-reference", "operators", "commands", "errors")


def test_written_pages_keep_to_the_width(repository):
    """Prose of docs/ reads well in an editor; tables, code and links may be longer."""
    for page in sorted(repository.glob("docs/*.md")):
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        long = [
            line
            for line in text.splitlines()
            if len(line) > 132 and not line.startswith(("|", "!"))
        ]
        assert not long, (page.name, long)


def test_the_rule_reference_has_every_key(pages):
    text = pages["rule-reference"].text
    for definition in json.loads(schema_text())["$defs"].values():
        for key, said in definition.get("properties", {}).items():
            assert f"`{key}`" in text
            assert " ".join(said["description"].split())[:20].split("`")[0] in text


def test_the_operator_reference_has_every_name_alias_and_option(pages, all_distributions):
    text = pages["operators"].text
    specs = [f.spec for f in (*all_distributions.operators(), *all_distributions.kernels())]
    assert len(specs) >= 12
    for spec in specs:
        schema = getattr(spec, "kwargs_schema", None) or spec.options_schema
        for name in (spec.name, *spec.aliases, *schema.get("properties", {})):
            assert f"`{name}`" in text, (spec.name, name)


def test_the_command_reference_has_every_option(pages):
    from kt_core.manual.commands import actions, command_parsers

    text = pages["commands"].text
    parsers = [parser for _, _, parser in command_parsers()]
    parsers += [child for parser in parsers for child in actions(parser).values()]
    for parser in parsers:
        assert f"# `{parser.prog}`\n" in text
        section = text.partition(f"# `{parser.prog}`\n")[2].partition("\n#")[0]
        for option in parser._option_string_actions:
            assert option in ("-h", "--help") or option in section, (parser.prog, option)
    assert {name for name, _, _ in command_parsers()} == set(COMMANDS)


def test_the_error_reference_has_every_code_as_kt_explains_it(pages):
    text = pages["errors"].text
    for code in codes().values():
        assert f"({code.id.lower()})=\n### {code.id}: " in text
        assert code.example.splitlines()[0] in text


def test_hostile_text_in_specs_and_codes_is_not_markup():
    from kt_core.manual.references import _prose, table
    from kt_core.manual.terminal import to_terminal

    text = "a <script> *b* [c](d) _e_ `f|g*`"
    shown = to_terminal(_prose(text)).strip()
    assert shown == "a <script> *b* [c](d) _e_ f|g*"
    lines = table(("x", "y"), [("a|b", "c\nd")])
    assert lines[-1] == "| a\\|b | c d |"
    assert "a|b  c d" in to_terminal("\n".join(lines))


def test_an_include_that_leads_nowhere_is_an_error():
    from kt_core.manual.pages import Page, _complete

    page = Page("a", "# A\n\n<!-- include: b: Figures -->\n")
    other = Page("b", "# B\n\n## Figures\n\n| x |\n\n## More\n\ny\n")
    assert _complete(page, {"b": other}).text == "# A\n\n| x |\n"
    for others in ({}, {"b": Page("b", "# B")}):
        with pytest.raises(ValueError, match="includes what is not there"):
            _complete(page, others)


def test_headings_in_code_are_no_sections():
    from kt_core.manual.pages import Page

    text = "# A\n\n````text\n```\n# not this\n````\n\n## B `c`\n\nd\n"
    assert [(s.title, s.level) for s in Page("a", text).sections()] == [("A", 1), ("B c", 2)]


def test_generated_pages_are_made_of_what_is_registered():
    from kt_core.registry.specs import AliasSpec, CommandSpec
    from kt_core.testing.registry import fake_plugin, fake_registry, kernel_spec

    options = {"type": "object", "properties": {"width": {"type": "integer", "minimum": 2}}}
    toy = fake_plugin(
        "toy",
        kernels=[kernel_spec("kt_toy.fast", options_schema=options)],
        aliases=[AliasSpec("quick", "kt_toy.fast")],
        commands=[CommandSpec("toy", "kt_toy.command", "play")],
    )
    made = generated_pages(fake_registry(toy))
    text = made["operators"].text
    assert "- aliases: `quick`" in text
    assert "| `kt toy` | play | kt-toy 1.0 |" in made["commands"].text
    assert "### `kt_toy.fast`" in text
    assert "| `width` | integer, at least 2 |" in text
    assert "kt_ops_cpu" not in text


@pytest.mark.skipif(find_spec("sphinx") is None, reason="the extra docs is not installed")
def test_the_site_builds_without_a_warning(repository, tmp_path):
    done = subprocess.run(
        [sys.executable, str(repository / "website" / "build.py"), str(tmp_path / "site")],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == ""
    for name in written_pages():
        html = (tmp_path / "site" / f"{name}.html").read_text(encoding="utf-8")
        assert "<title>" in html
        assert not re.findall(r'(?:src|href)="(?:https?:)?//[^"]*\.(?:js|css|woff2?)', html)
    errors = (tmp_path / "site" / "errors.html").read_text(encoding="utf-8")
    assert 'id="kt210"' in errors
    said = " ".join(unescape(re.sub(r"<[^>]+>", "", errors)).split())
    for code in codes().values():
        assert " ".join(code.explanation.replace("`", "").split()) in said


class TestTerminal:
    def show(self, text, **options):
        from kt_core.manual.terminal import to_terminal

        return to_terminal(textwrap.dedent(text), **options)

    def test_prose_lists_and_code(self):
        shown = self.show(
            """\
            # Title

            Some **bold**, *slanted* and `co*d*e` words, a [link](page.md), an
            [address](https://example.org) and snake_case_names with a \\* star.

            - one that is
              continued
            - two

            <!-- run -->
            ```console
            $ kt docs  # <not> *markup*
            ```
            """,
            width=60,
        )
        assert shown == textwrap.dedent(
            """\
            Title
            =====

            Some bold, slanted and co*d*e words, a link, an address
            <https://example.org> and snake_case_names with a * star.

            - one that is continued
            - two

                $ kt docs  # <not> *markup*
            """
        )

    def test_tables_are_aligned_and_the_last_column_wraps(self):
        shown = self.show("| a | b |\n|---|---|\n| `x` | " + "word " * 12 + "|\n", width=40)
        lines = shown.splitlines()
        assert lines[0] == "a  b"
        assert lines[2].startswith("x  word")
        assert lines[3].startswith("   word")
        assert max(map(len, lines)) <= 40

    def test_bold_only_where_asked(self):
        assert "\x1b" not in self.show("# A\n\n**b**\n")
        assert self.show("# A\n", styled=True) == "\x1b[1mA\x1b[0m\n"


def test_every_environment_variable_is_documented_and_exists(pages, repository):
    named = re.compile(r"\b(?:KT|CPUINFER)_[A-Z][A-Z_]*[A-Z]\b")
    sources = [*repository.glob("kt_core/**/*.py"), *repository.glob("kt_ops_*/**/*.py")]
    quoted = re.compile(rf'"({named.pattern})"')
    read = {name for file in sources for name in quoted.findall(file.read_text(encoding="utf-8"))}
    read -= {"KT_PLUGIN_API"}  # a module's attribute
    assert len(read) > 8
    documented = set(re.findall(r"`((?:KT|CPUINFER)_[A-Z_]+)`", pages["environment"].text))
    assert documented == read | {"KT_NVCC"}
    told = {
        (name, word)
        for name, page in pages.items()
        for word in named.findall(page.text)
        if not page.generated and word not in documented
    }
    known = {"KT_PLUGIN_API", "KT_TEST_MODEL", "KT_KERNEL_PYTHON"}
    assert {word for _, word in told} <= known, told
