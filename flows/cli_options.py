"""Options that several commands share."""

from typing import Annotated

import typer

Root = Annotated[
    str, typer.Option("--root", envvar="BASEMILL_ROOT", help="Storage root: a folder or s3://bucket/prefix.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Figures as JSON, for programs.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, a part of one, or `latest`.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.PATH=VALUE", help="Change one value of the recipe; may be given again."),
]
