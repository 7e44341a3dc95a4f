"""Public names have docstrings with examples, which do what they show.

An example that is an interpreter's session runs, and prints what it shows. One that
imports tf_syncrep runs, and prints what its comments say. The others are parts of a
script, often of one that needs a cluster: they compile, and the names and arguments in
them exist.
"""

from __future__ import annotations

import doctest
import inspect
import re

import numpy as np
import public_api
import public_calls
import pytest
import tensorflow as tf

import tf_syncrep as tfs

PUBLIC = dict(public_api.public_names())


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_an_example_in_its_docstring(name):
    docstring = inspect.getdoc(PUBLIC[name]) or ""
    assert ">>> " in docstring or public_api.scripts(PUBLIC[name]), (
        f"The docstring of {name} has no example: a session (>>>), or a fence."
    )


@pytest.mark.parametrize(
    "name", [name for name in PUBLIC if public_api.scripts(PUBLIC[name])]
)
def test_a_script_in_a_docstring_is_right(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for script in public_api.scripts(PUBLIC[name]):
        assert public_calls.wrong_calls(script, name) == []
        if "import tf_syncrep" in script:
            exec(compile(script, name, "exec"), {"__name__": "example"})
            promised = re.findall(r"print\(.*\)  # ([^,\n]+)", script)
            printed = capsys.readouterr().out.splitlines()
            assert printed[len(printed) - len(promised) :] == promised


@pytest.mark.parametrize(
    "name", [name for name in PUBLIC if ">>> " in (inspect.getdoc(PUBLIC[name]) or "")]
)
def test_a_session_in_a_docstring_prints_what_it_says(name):
    # A fence that follows would be taken for output.
    text = (inspect.getdoc(PUBLIC[name]) or "").replace("```", "\n```")
    known = {"np": np, "tf": tf, "tfs": tfs}
    session = doctest.DocTestParser().get_doctest(text, known, name, name, 0)
    printed: list[str] = []
    failed, _ = doctest.DocTestRunner().run(session, out=printed.append)
    assert not failed, "".join(printed)
