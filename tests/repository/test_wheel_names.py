"""A wheel's version names its TensorFlow, and pip can be asked for it."""

import pathlib
import subprocess
import sys
import zipfile

import pytest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "name_wheel.py"
METADATA = "Metadata-Version: 2.1\nName: tf_syncrep\nVersion: 0.1.0\n\nVersion: 0.1.0\n"


def _write_wheel(folder: pathlib.Path, tf_version: str) -> pathlib.Path:
    """Writes a wheel as scikit-build-core names it, with little in it."""
    wheel = folder / "tf_syncrep-0.1.0-py3-none-any.whl"
    info = "tf_syncrep-0.1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        # It is not last, as the tools that repair wheels leave it.
        archive.writestr(f"{info}/RECORD", "")
        archive.writestr(f"{info}/METADATA", METADATA)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        archive.writestr(
            "tf_syncrep/_build_info.py",
            f'"""Notes."""\n\nTF_VERSION = "{tf_version}"\n',
        )
    return wheel


def _pip(*arguments: str | pathlib.Path) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    result = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> pathlib.Path:
    """A folder with the wheels for two versions of TensorFlow."""
    folder = tmp_path_factory.mktemp("wheels")
    for tf_version in ("2.20.0", "2.21.0-rc1"):
        wheel = _write_wheel(tmp_path_factory.mktemp("built"), tf_version)
        result = subprocess.run(
            [sys.executable, TOOL, wheel, folder / "dist"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert pathlib.Path(result.stdout.strip()).exists()
    return folder / "dist"


def test_names_say_which_tensorflow(wheels):
    assert sorted(path.name for path in wheels.iterdir()) == [
        "tf_syncrep-0.1.0+tf2.20-py3-none-any.whl",
        "tf_syncrep-0.1.0+tf2.21-py3-none-any.whl",
    ]


@pytest.mark.parametrize(
    ("asked", "minor"),
    [("0.1.0+tf2.20", "2.20"), ("0.1.0+tf2.21", "2.21"), ("0.1.0", "2.21")],
)
def test_pip_installs_the_one_that_is_asked_for(wheels, tmp_path, asked, minor):
    _pip(
        *("install", "--no-index", "--find-links", wheels, "--no-deps"),
        *("--target", tmp_path, f"tf_syncrep=={asked}"),
    )
    (metadata,) = tmp_path.glob("*.dist-info/METADATA")
    assert metadata.parent.name == f"tf_syncrep-0.1.0+tf{minor}.dist-info"
    # The version is changed only in its own field, and not in the description.
    assert metadata.read_text() == METADATA.replace("0.1.0", f"0.1.0+tf{minor}", 1)
    assert minor in (tmp_path / "tf_syncrep" / "_build_info.py").read_text()


def test_every_file_has_its_hash(wheels):
    for wheel in wheels.iterdir():
        with zipfile.ZipFile(wheel) as archive:
            (record,) = (n for n in archive.namelist() if n.endswith("/RECORD"))
            lines = archive.read(record).decode().splitlines()
            assert archive.namelist()[-1] == record
        assert [line.partition(",")[0] for line in lines] == archive.namelist()
        assert [line for line in lines if ",sha256=" not in line] == [f"{record},,"]
