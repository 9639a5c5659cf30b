"""Names of sites. Torch-free."""

from typing import Annotated

from pydantic import AfterValidator, Field

SITE = r"^[a-z0-9][a-z0-9-]{0,62}$"  # a site's name
ANY, NOBODY = "any", "bucket"  # every site as coordinator; in audit logs, an unknown sender


def _is_no_word(name: str) -> str:
    if name in (ANY, NOBODY):
        raise ValueError(f"no site may be called {name}, which means something else")
    return name


SiteName = Annotated[str, Field(pattern=SITE), AfterValidator(_is_no_word)]
