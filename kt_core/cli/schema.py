"""Print the JSON schema of rule files, for editors.

With --with-plugins it knows the operators and kernels that are installed, so that an editor completes
their names and options. Write it to a file, and name that file in the first line of a rule file:

    kt schema --with-plugins > rules.schema.json
    # yaml-language-server: $schema=rules.schema.json
"""

from __future__ import annotations

import argparse

from kt_core.cli import exit_codes
from kt_core.cli.output import write, write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kt schema``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--with-plugins",
        action="store_true",
        help="know the names and options of installed operators and kernels",
    )


def run(args: argparse.Namespace) -> int:
    """Print the schema."""
    if args.with_plugins:
        from kt_core.registry.registry import default_registry
        from kt_core.rules.plugin_schema import plugin_schema

        write_json(plugin_schema(default_registry()))
    else:
        from kt_core.rules.schema import schema_text

        write(schema_text().rstrip())
    return exit_codes.OK
