"""Turn the template's files into a distribution: choose, rename, fill in.

The files lie in layers. Those of ``common`` go first, then the ones for how the plugin computes
(``native/c``), for what it brings (``kind/experts``) and for both together (``both/experts-c``); a later
layer replaces what an earlier one has. In text and paths the template's own name becomes the plugin's,
and words like ``@LICENSE@`` are filled in. That is all: the files are otherwise what is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

from kt_core.errors import KtError, UsageError
from kt_core.templates.names import package_of

DISTRIBUTION, PACKAGE = "kt-plugin-template", "kt_plugin_template"
"""What the template calls itself."""

LICENSES = ("Apache-2.0", "BSD-3-Clause", "MIT")

COMPUTES: Mapping[str, tuple[str, ...]] = {
    "linear": ("none", "c", "cuda", "triton"),
    "experts": ("none", "c", "cuda", "triton"),
    "attention": ("none",),
    "rules": ("none",),
}
"""What each kind of plugin can be written in."""

_KINDS = {
    "linear": "A kernel for linear layers",
    "experts": "A kernel for routed experts",
    "attention": "An attention operator",
    "rules": "Rule files",
}
_WORDS = {
    "none": {"how": "in torch", "build": [], "needs": [], "device": "cpu"},
    "c": {"how": "in C", "build": ["cffi>=1.17"], "needs": ["cffi>=1.17"], "device": "cpu"},
    "cuda": {"how": "in CUDA", "build": [], "needs": [], "device": "cuda"},
    "triton": {"how": "in Triton", "build": [], "needs": ["triton>=3"], "device": "cuda"},
}
# One wheel for every Python: the compiled part is bound by the stable ABI, or by ctypes.
_LIMITED = "\n[tool.meson-python]\nlimited-api = true\n"
_BUILD = ("meson-python>=0.17", "meson>=1.5")

# What the README says of each file, where it is there.
_PURPOSES = {
    "src/{package}/plugin.py": "what kt is told: names, options, where the code is",
    "src/{package}/backend.py": "devices, stored types, and the probe that says why not",
    "src/{package}/linear.py": "the kernel that kt calls",
    "src/{package}/experts.py": "the kernel that kt calls",
    "src/{package}/layer.py": "what is checked before anything is computed",
    "src/{package}/attention.py": "the operator that kt puts into the model",
    "src/{package}/products.py": "the arithmetic",
    "src/{package}/tile.py": "the Triton kernel",
    "src/{package}/reference.py": "the same arithmetic, plainly: the oracle of the tests",
    "src/{package}/rules/{package}.yaml": "a rule file that uses it",
    "csrc": "the native code and its header",
    "tests": "kt's contract in three lines, the reference, a whole model",
}


@dataclass(frozen=True)
class Choice:
    """What the author asked for. ``name`` is the distribution's."""

    name: str
    kind: str = "linear"
    native: str = "none"
    license: str = "Apache-2.0"
    author: str = ""
    year: int = 2026

    @property
    def package(self) -> str:
        """The import package."""
        return package_of(self.name)


def render(choice: Choice) -> dict[str, str]:
    """Return every file of the distribution: relative path, with ``/``, to text.

    Raises:
        UsageError: KT740 for a name that cannot be, KT741 for a kind that is not written that way.
    """
    package = choice.package
    allowed = COMPUTES[choice.kind]
    if choice.native not in allowed:
        raise UsageError.of(
            "KT741",
            f"there is no template for --kind {choice.kind} --native {choice.native}",
            facts=[f"--kind {kind}: {', '.join(how)}" for kind, how in COMPUTES.items()],
            help=f"--kind {choice.kind} --native {allowed[-1]}",
        )
    sources = _layers(choice)
    sources["LICENSE"] = f"licenses/{choice.license}.txt"
    paths = {_named(path, choice.name, package): source for path, source in sources.items()}
    words = _words(choice, package, sorted(paths))
    files = {}
    for path, source in sorted(paths.items()):
        text = _named(_read(source), choice.name, package)
        files[path] = re.sub(r"@([A-Z_]+)@", lambda found: words.get(found[1], found[0]), text)
    return files


def _layers(choice: Choice) -> dict[str, str]:
    """Path in the distribution (the template's names) to path in the template."""
    native = () if choice.kind == "rules" else (f"native/{choice.native}",)
    plain = ("native/none",) if choice.kind == "rules" else ()
    chosen: dict[str, str] = {}
    for layer in (
        "common",
        *plain,
        *native,
        f"kind/{choice.kind}",
        f"both/{choice.kind}-{choice.native}",
    ):
        folder = _template().joinpath(*layer.split("/"))
        if not folder.is_dir():
            continue
        for path in _walk(folder, ""):
            target = re.sub(r"(^|/)dot-", r"\1.", path).removesuffix(".in")
            chosen[target] = f"{layer}/{path}"
    if choice.kind == "rules":  # nothing is computed
        package = f"src/{PACKAGE}"
        chosen = {
            path: source
            for path, source in chosen.items()
            if path not in (f"{package}/backend.py", f"{package}/products.py")
        }
    return chosen


def _template() -> Traversable:
    return resources.files("kt_core.templates").joinpath("plugin")


def _walk(folder: Traversable, prefix: str) -> Iterator[str]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _walk(entry, f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}"


def _read(source: str) -> str:
    try:
        return _template().joinpath(*source.split("/")).read_text(encoding="utf-8")
    except OSError as error:
        raise KtError.of(
            "KT222",
            f"the template of kt new-plugin lacks {source}",
            facts=[f"{type(error).__name__}: {error}"],
            help="pip install --force-reinstall kt-core",
        ) from error


def _named(text: str, name: str, package: str) -> str:
    return (
        text.replace(PACKAGE, package)
        .replace(PACKAGE.upper(), package.upper())
        .replace(DISTRIBUTION, name)
    )


def _words(choice: Choice, package: str, paths: list[str]) -> dict[str, str]:
    how = _WORDS[choice.native]
    home = f"src/{package}/"
    shipped = [
        path.removeprefix(home)
        for path in paths
        if path.startswith(home) and not path.endswith("meson.build")
    ]
    extra = "" if choice.kind == "rules" else "[torch]"
    build = [*_BUILD, *how["build"]]
    title = _KINDS[choice.kind] + ("" if choice.kind == "rules" else f" {how['how']}")
    return {
        "AUTHOR": choice.author or f"the authors of {choice.name}",
        "YEAR": str(choice.year),
        "LICENSE": choice.license,
        "SUMMARY": f"{title} for kt.",
        "DEVICE": str(how["device"]),
        "BUILD_REQUIRES": _quoted(build),
        "REQUIRES": _quoted([f"kt-core{extra}>=0.1,<0.2", *how["needs"]]),
        "DEVELOP": " ".join(f'"{item}"' for item in (*build, "ninja")),
        "TOOLS": _LIMITED if choice.native in ("c", "cuda") else "",
        "SOURCES": "\n".join(f"  '{path}'," for path in shipped),
        "FILES": "\n".join(_table(package, paths)),
    }


def _quoted(items: list[str]) -> str:
    return ", ".join(f'"{item}"' for item in items)


def _table(package: str, paths: list[str]) -> Iterator[str]:
    for pattern, purpose in _PURPOSES.items():
        path = pattern.format(package=package)
        if path in paths:
            yield f"| `{path}` | {purpose} |"
        elif any(known.startswith(f"{path}/") for known in paths):
            yield f"| `{path}/` | {purpose} |"
