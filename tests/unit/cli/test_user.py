"""What `firn user` says about input that is no password."""

from pathlib import Path

from click.testing import CliRunner

from firnmq.cli.main import main


def test_a_password_file_that_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes(b"\xff\xfe\n")
    data = str(tmp_path / "data")
    result = CliRunner().invoke(
        main, ["user", "add", "ann", "--password-file", str(file), "--data", data]
    )
    assert (result.exit_code, result.output) == (2, "error: --password-file: is not UTF-8 text\n")
