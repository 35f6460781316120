"""Under which name a client is known: a user of SASL, or what its certificate says."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from firnmq.errors import InvalidArgument

ANONYMOUS: Final = "User:ANONYMOUS"
"""A client that has not said who it is."""
_SUBJECT_CHARS_MAX: Final = 4_096

_SHORT: Final = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_RULE = re.compile(r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")
_GROUP = re.compile(r"\$(\d)")
_ESCAPED = re.compile(r'([,+"\\<>;])')


def user_principal(name: str) -> str:
    return f"User:{name}"


def subject_of(certificate: Mapping[str, Any]) -> str:
    """The distinguished name of a certificate in the form of RFC 2253, as Kafka has it: the last
    part first. `certificate` is as `ssl.SSLSocket.getpeercert` gives it."""
    parts: Sequence[Sequence[tuple[str, str]]] = certificate.get("subject", ())
    return ",".join(
        "+".join(f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in part)
        for part in reversed(parts)
    )


def _escaped(value: str) -> str:
    text = _ESCAPED.sub(r"\\\1", value)
    if text[:1] in ("#", " "):
        text = f"\\{text}"
    if len(text) > 1 and text.endswith(" "):
        text = f"{text[:-1]}\\ "
    return text


class CertificateNames:
    """Rules that make a user's name of the subject of a certificate. The first that fits counts.

    `DEFAULT` takes the whole subject. `RULE:pattern/replacement/` takes the replacement if the
    pattern fits the whole subject; `$1` there is the pattern's first group. `L` or `U` at the end
    makes the name lower or upper case. Rules are separated by commas.
    """

    def __init__(self, rules: str = "DEFAULT") -> None:
        self._rules: list[Callable[[str], str | None]] = []
        text = rules.strip()
        while text:
            match = _RULE.match(text)
            rest = "" if match is None else text[match.end() :].lstrip()
            if match is None or (rest and not rest.startswith(",")):
                raise InvalidArgument(
                    "certificate_names",
                    f"{text!r} does not begin with DEFAULT or RULE:pattern/replacement/[LU]",
                )
            self._rules.append(_rule(match))
            text = rest[1:].lstrip()
        if not self._rules:
            raise InvalidArgument("certificate_names", "has no rule; DEFAULT is the simplest")

    def principal(self, certificate: Mapping[str, Any] | None) -> str:
        """The principal of a client with this certificate; anonymous if no rule fits."""
        subject = subject_of(certificate) if certificate else ""
        if not 0 < len(subject) <= _SUBJECT_CHARS_MAX:
            return ANONYMOUS
        for rule in self._rules:
            name = rule(subject)
            if name:
                return user_principal(name)
        return ANONYMOUS


def _rule(match: re.Match[str]) -> Callable[[str], str | None]:
    if match[1]:
        return str
    case, replacement = match[4], match[3].replace("\\/", "/")
    try:
        pattern = re.compile(match[2].replace("\\/", "/"))
    except re.error as error:
        raise InvalidArgument("certificate_names", f"{match[2]!r}: {error}") from error
    for group in _GROUP.findall(replacement):
        if int(group) > pattern.groups:
            raise InvalidArgument("certificate_names", f"{match[2]!r} has no group ${group}")

    def name(subject: str) -> str | None:
        found = pattern.fullmatch(subject)
        if found is None:
            return None
        made = _GROUP.sub(lambda group: found[int(group[1])] or "", replacement)
        return made.lower() if case == "L" else made.upper() if case == "U" else made

    return name
