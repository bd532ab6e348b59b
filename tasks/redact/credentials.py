"""Keys and tokens that open something, by the marks that their issuers put on them, and private keys in PEM blocks.

A key without a mark (a bare hash, a random word) can't be told from an id and stays. So does a placeholder: few
different characters ("ghp_xxxxxxxx").
"""

import re
from collections.abc import Iterator

MIN_DISTINCT = 8  # characters in a key; 20 random letters and digits hold fewer once in a million

_PRIVATE_KEY = (
    rb"-----BEGIN (?:[A-Z]{2,9} ){0,2}PRIVATE KEY(?: BLOCK)?-----(?:[\w+/=\s:,.\\\"'();@<>]|-(?!-)){40,16000}+"
    rb"-----END (?:[A-Z]{2,9} ){0,2}PRIVATE KEY(?: BLOCK)?-----"
)
_API_KEY = rb"|".join(
    [
        rb"A(?:KIA|SIA|BIA|CCA)[A-Z0-9]{16}",  # Amazon
        rb"gh[opsur]_[A-Za-z0-9]{36,255}",  # GitHub
        rb"github_pat_[A-Za-z0-9_]{22,255}",
        rb"gl(?:pat|dt|ptt|rt)-[\w-]{20,64}",  # GitLab
        rb"xox[abeoprs]-[0-9A-Za-z-]{20,255}",  # Slack
        rb"xapp-[0-9]-[0-9A-Za-z-]{20,255}",
        rb"AIza[\w-]{35}",  # Google
        rb"GOCSPX-[\w-]{28}",
        rb"ya29\.[\w-]{20,512}",
        rb"[rs]k_(?:live|test)_[A-Za-z0-9]{20,255}",  # Stripe
        rb"whsec_[A-Za-z0-9+/]{24,64}",
        rb"sk-[A-Za-z0-9]{32,64}",  # OpenAI and those that follow it
        rb"sk-(?:proj|svcacct|admin|ant|or)-[\w-]{24,255}",
        rb"gsk_[A-Za-z0-9]{40,64}",  # Groq
        rb"hf_[A-Za-z0-9]{34}",  # Hugging Face
        rb"npm_[A-Za-z0-9]{36}",
        rb"pypi-AgE[\w-]{50,255}",
        rb"rubygems_[a-f0-9]{48}",
        rb"dckr_pat_[\w-]{20,64}",
        rb"do[opr]_v1_[a-f0-9]{64}",  # DigitalOcean
        rb"dapi[a-f0-9]{32}",  # Databricks
        rb"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}",  # Shopify
        rb"SG\.[\w-]{16,32}\.[\w-]{16,64}",  # SendGrid
        rb"hvs\.[\w-]{24,255}",  # Vault
        rb"eyJ[\w-]{10,2000}\.eyJ[\w-]{10,4000}\.[\w-]{10,2000}",  # JSON Web Token, RFC 7519
    ]
)
KEYS = re.compile(rb"(?P<private>" + _PRIVATE_KEY + rb")|(?<![\w-])(?:" + _API_KEY + rb")(?![\w-])")
# Screens whole columns with RE2, which is linear; an upper bound of a repeat would only make its automaton large
KEY_SCREEN = r"PRIVATE KEY(?: BLOCK)?-----|\b(?:" + re.sub(r"\{(\d+),\d+\}", r"{\1,}", _API_KEY.decode()) + ")"


def find_keys(text: bytes) -> Iterator[tuple[int, int, bool]]:
    """(first byte, end, whether it is a private key) of each key in a text."""
    for match in KEYS.finditer(text):
        is_private = match["private"] is not None
        if is_private or len(set(match[0])) > MIN_DISTINCT:
            yield *match.span(), is_private
