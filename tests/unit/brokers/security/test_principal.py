"""Names of clients that show certificates."""

import pytest

from firnmq.brokers.security.principal import ANONYMOUS, CertificateNames, subject_of
from firnmq.errors import InvalidArgument

DUKE = {
    "subject": (
        (("countryName", "US"),),
        (("organizationName", "Sun, Inc"),),
        (("organizationalUnitName", "ServiceUsers"),),
        (("commonName", "Duke"),),
    )
}


def test_the_subject_is_written_as_in_kafka() -> None:
    assert subject_of(DUKE) == "CN=Duke,OU=ServiceUsers,O=Sun\\, Inc,C=US"
    odd = {"subject": ((("commonName", "#a "), ("userId", "7")),)}
    assert subject_of(odd) == "CN=\\#a\\ +UID=7"


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ("DEFAULT", "User:CN=Duke,OU=ServiceUsers,O=Sun\\, Inc,C=US"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "User:Duke"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1@svc/L", "User:duke@svc"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1-$2/U, DEFAULT", "User:DUKE-SERVICEUSERS"),
        ("RULE:^CN=nobody$/x/,RULE:^.*O=([^,\\\\]+).*$/$1/", "User:Sun"),
        ("RULE:^CN=(Du)(x)?ke.*$/$1$2/", "User:Du"),
        ("RULE:CN=Duke/short/", ANONYMOUS),  # A rule must fit the whole subject.
        ("RULE:^CN=nobody$/x/", ANONYMOUS),
    ],
)
def test_rules(rules: str, name: str) -> None:
    assert CertificateNames(rules).principal(DUKE) == name


@pytest.mark.parametrize(
    "wrong", ["", "default", "RULE:a", "RULE:(/x/", "RULE:a/$1/", "DEFAULT DEFAULT", "RULE:a/b/Z"]
)
def test_wrong_rules(wrong: str) -> None:
    with pytest.raises(InvalidArgument):
        CertificateNames(wrong)


@pytest.mark.parametrize("certificate", [None, {}, {"subject": ((("commonName", "x" * 5000),),)}])
def test_without_a_subject_that_can_be_used(certificate: dict[str, object] | None) -> None:
    assert CertificateNames().principal(certificate) == ANONYMOUS
