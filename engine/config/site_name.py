"""Names of sites. Torch-free."""

from typing import Annotated

from pydantic import AfterValidator, Field

SITE = r"^[a-z0-9][a-z0-9-]{0,62}$"  # a site's name
ANY, NOBODY = "any", "bucket"  # `any`: every site as coordinator; `bucket`: an unknown sender in audit logs


def _is_no_word(name: str) -> str:
    if name in (ANY, NOBODY):
        raise ValueError(f"no site may be called {name}: this word has another meaning")
    return name


SiteName = Annotated[str, Field(pattern=SITE), AfterValidator(_is_no_word)]
