"""`labkit challenge NAME FILE --send NAME`: an entry on its way to a course's hub."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from labkit.challenges import sending
from labkit.challenges.sending import checked_name
from labkit.cli import main


@pytest.fixture
def inbound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    inbound = tmp_path / "exchange" / "inbound"
    inbound.mkdir(parents=True)
    monkeypatch.setenv(sending.EXCHANGE, str(inbound.parent))
    monkeypatch.setenv("USER", "ada")
    (tmp_path / "mine.py").write_text("class Policy: ...\n")
    return inbound


def test_an_entry_is_a_folder_of_the_exchange(inbound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = inbound.parent.parent / "mine.py"
    mask = os.umask(0o077)
    try:
        assert main(["challenge", "goodput", str(file), "--send", "  The   Tortoise "]) == 0
    finally:
        os.umask(mask)
    assert "as 'The Tortoise'" in capsys.readouterr().out
    (folder,) = inbound.iterdir()
    assert folder.name.startswith("ada+challenge-goodput+")
    assert {path.name for path in folder.iterdir()} == {"entry.py", "name.txt", "submission_secret.txt"}
    modes = {path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert folder.stat().st_mode & 0o777 == 0o755 and modes == {0o644}, "a hub that is not root reads them"
    assert (folder / "entry.py").read_text() == file.read_text()
    assert (folder / "name.txt").read_text() == "The Tortoise"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("<b>bold</b>", b"", "a name in the standings has letters, digits"),
        ("", b"", "has 1 to 30 characters"),
        ("x" * 31, b"", "has 1 to 30 characters, got 31"),
        ("fine", b"#" * 100_001, "an entry has at most 100,000"),
        ("fine", b"\xff\xff", "line 1 is not UTF-8 text"),
    ],
)
def test_what_cannot_be_judged_is_not_sent(
    inbound: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, reason: str
) -> None:
    file = inbound.parent.parent / "mine.py"
    file.write_bytes(content)
    assert main(["challenge", "goodput", str(file), "--send", name]) == 2
    assert reason in capsys.readouterr().err
    assert not list(inbound.iterdir())


def test_without_a_hub_nothing_is_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text("")
    assert main(["challenge", "goodput", str(tmp_path / "mine.py"), "--send", "me"]) == 2
    assert "--send works on the server of a course's hub" in capsys.readouterr().err
    assert main(["challenge", "goodput", "--send", "me"]) == 2
    assert "--send needs a challenge, a file" in capsys.readouterr().err


def test_entries_are_withdrawn_by_a_folder_of_the_exchange(inbound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["challenge", "goodput", "--withdraw"]) == 0
    assert "your entries to goodput so far are withdrawn" in capsys.readouterr().out
    (folder,) = inbound.iterdir()
    assert folder.name.startswith("ada+withdraw-challenge-goodput+")
    assert [path.name for path in folder.iterdir()] == ["submission_secret.txt"]
    assert main(["challenge", "goodput", str(inbound.parent.parent / "mine.py"), "--withdraw"]) == 2
    assert main(["challenge", "--withdraw"]) == 2
    assert "--withdraw needs the name of a challenge" in capsys.readouterr().err


def test_without_a_hub_nothing_is_withdrawn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(sending.EXCHANGE, raising=False)
    assert main(["challenge", "goodput", "--withdraw"]) == 2
    assert "--withdraw works on the server of a course's hub" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    ["ada\u202egnol", "a\u200bb", "a\u0301\u0302\u0303", "-x", "a&b", "a\x00b", "a\u3164b", "\u115fab"],
    ids=["reordered", "invisible", "stacked marks", "option", "entity", "null", "filler", "filler in front"],
)
def test_names_that_mislead_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a name in the standings has letters"):
        checked_name(name)


def test_names_have_a_normal_form() -> None:
    assert checked_name(" \N{FULLWIDTH LATIN CAPITAL LETTER A}da\n  2.0 ") == "Ada 2.0"
    assert checked_name("e\u0301clair") == "\u00e9clair"
