"""Copies of the installed package that a test may damage, and processes with them."""

import os
import pathlib
import shutil
import subprocess
import sys

import programs

import tf_syncrep

# The hook of an editable install would win over the path.
_WITH_COPY = """
import sys
for name in [x for x in sys.modules if x.partition(".")[0] == "tf_syncrep"]:
    del sys.modules[name]
sys.meta_path[:] = [x for x in sys.meta_path if "editable" not in type(x).__module__]
sys.path.insert(0, {folder!r})
"""


class PackageCopy:
    """A copy of the installed tf_syncrep, run in processes of its own."""

    def __init__(self, folder: pathlib.Path):
        """Copies the package into `folder`, the first on the path of the processes."""
        self._folder = folder
        self.package = folder / "tf_syncrep"
        shutil.copytree(
            os.path.dirname(tf_syncrep.__file__),
            self.package,
            ignore=shutil.ignore_patterns("cc"),
        )

    @property
    def library(self) -> pathlib.Path:
        return self.package / "libtf_syncrep.so"

    @property
    def build_info(self) -> pathlib.Path:
        return self.package / "_build_info.py"

    def set_built_for(self, tf_version: str) -> None:
        """Makes the copy's record say that it was built for this TensorFlow."""
        self.build_info.write_text(
            f'TF_VERSION = "{tf_version}"\nCUDA_VERSION = None\n'
            'COMPILER = "GNU 12.2.0"\n'
        )

    def set_distribution(self, version: str, direct_url: str) -> None:
        """Makes the copy a distribution that pip has installed.

        `direct_url` is the text of pip's record of that name; empty for none.
        """
        info = self._folder / f"tf_syncrep-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: tf_syncrep\nVersion: {version}\n"
        )
        if direct_url:
            (info / "direct_url.json").write_text(direct_url)

    def hide_module(self, name: str) -> None:
        """Makes `import name` fail in the processes."""
        message = f"No module named '{name}'"
        (self._folder / f"{name}.py").write_text(
            f"raise ModuleNotFoundError({message!r})\n"
        )

    def run_in_a_fork(self, source: str) -> subprocess.CompletedProcess[str]:
        """Runs Python source with the copy, but with TensorFlow imported before.

        It takes seconds less, and is for what fails before the copy's library is
        loaded: that of the installed package is loaded already.
        """
        return programs.run_source(_WITH_COPY.format(folder=str(self._folder)) + source)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs Python with these arguments; the copy is its tf_syncrep.

        It runs without the site module, since the hook of an editable install would win
        over the path.
        """
        path = os.pathsep.join([str(self._folder), *filter(None, sys.path)])
        return subprocess.run(
            [sys.executable, "-S", *arguments],
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            text=True,
            check=False,
        )
