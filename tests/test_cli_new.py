"""`new` and `demo`: what a newcomer starts with works as it is."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ruststream_kinesis.cli.commands import cli
from ruststream_kinesis.cli.loading import load_app
from ruststream_kinesis.cli.scaffold import module_name, new_service
from ruststream_kinesis.errors import ConfigurationError


class TestNew:
    def test_its_own_test_passes_and_the_next_steps_name_what_is_there(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", list(sys.path))

        made = CliRunner().invoke(cli, ["new", "My-Orders"])

        assert made.exit_code == 0
        folder = tmp_path / "My-Orders"
        assert "cd My-Orders" in made.output
        assert "run my_orders:app" in made.output
        assert {each.name for each in folder.iterdir()} == {
            *(".gitignore", "README.md", "pyproject.toml", "my_orders.py", "test_my_orders.py")
        }
        done = subprocess.run(
            # The plugin for asyncio has settings of this checkout's; a newcomer has none of it.
            [sys.executable, *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio")],
            cwd=folder,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 passed" in done.stdout
        monkeypatch.chdir(folder)
        assert load_app("my_orders:app").title == "my-orders"
        sys.modules.pop("my_orders")
        project = tomllib.loads((folder / "pyproject.toml").read_text())
        assert project["project"]["name"] == "my-orders"
        assert project["tool"]["setuptools"]["py-modules"] == ["my_orders"]

    def test_a_folder_that_holds_something_is_left_alone(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "orders").mkdir()
        (tmp_path / "orders" / "mine.txt").write_text("mine")

        result = CliRunner().invoke(cli, ["new", "orders"])

        (line,) = result.stderr.splitlines()
        assert result.exit_code == 1
        assert "is not empty" in line
        assert [each.name for each in (tmp_path / "orders").iterdir()] == ["mine.txt"]

    def test_an_empty_folder_is_as_good_as_none(self, tmp_path):
        (tmp_path / "orders").mkdir()

        new_service("orders", tmp_path)

        assert (tmp_path / "orders" / "orders.py").exists()

    def test_what_cannot_be_written_is_an_error_that_names_the_folder(self, tmp_path):
        (tmp_path / "orders").write_text("a file")

        with pytest.raises(ConfigurationError, match=r"cannot write .*orders"):
            new_service("orders", tmp_path)

    @pytest.mark.parametrize(
        ("name", "module"),
        [("orders", "orders"), ("My Orders", "my_orders"), ("a-b.c", "a_b_c"), (" x ", "x")],
    )
    def test_a_name_becomes_an_identifier(self, name, module):
        assert module_name(name) == module

    @pytest.mark.parametrize(
        "name", ["", "a/b", "../a", "1st", "class", "é", "json", "msgspec", "ruststream-kinesis"]
    )
    def test_a_name_that_is_none_is_refused(self, name):
        with pytest.raises(ConfigurationError, match="name"):
            module_name(name)


class TestDemo:
    def test_it_needs_nothing_and_every_count_is_right(self):
        result = CliRunner().invoke(cli, ["demo", "--orders", "200"])

        assert result.exit_code == 0, result.output
        assert "Every count is right" in result.output
        assert "ruststream-kinesis new" in result.output

    def test_too_few_orders_make_no_demo(self):
        assert CliRunner().invoke(cli, ["demo", "--orders", "9"]).exit_code == 2


def test_nothing_of_the_checkout_is_needed_by_the_commands():
    """The wheel has no examples, tests or benches."""
    folder = Path(sys.modules["ruststream_kinesis.cli"].__file__ or "").parent
    for path in folder.glob("*.py"):
        source = path.read_text()
        assert not any(f"from {name}" in source for name in ("examples", "tests", "benches")), path
