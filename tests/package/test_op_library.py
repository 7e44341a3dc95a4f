"""Loading the op library: public names, and the messages if it cannot be loaded."""

import importlib.metadata
import os
import pathlib
import shutil
import sys
import types

import pytest
import tensorflow as tf
from package_copies import PackageCopy

import tf_syncrep as tfs
from tf_syncrep.python.ops import op_library


@pytest.fixture
def copy(tmp_path) -> PackageCopy:
    return PackageCopy(tmp_path)


def _fail_to_import(copy: PackageCopy, in_a_fork: bool = True) -> str:
    """Imports the copy, which must fail; returns the error's text."""
    program = "import tf_syncrep"
    result = copy.run_in_a_fork(program) if in_a_fork else copy.run("-c", program)
    assert result.returncode == 1
    assert "\nImportError: " in result.stderr
    return result.stderr.rpartition("\nImportError: ")[2]


def test_library_is_beside_the_package_and_one_that_tensorflow_loads():
    path = tfs.library_path()
    assert os.path.dirname(path) == os.path.dirname(tfs.__file__)
    assert callable(tf.load_op_library(path).resource_apply_adam_async)
    assert op_library.load() is op_library.load()


@pytest.mark.parametrize("cuda_version", [None, "13.0"])
def test_there_are_gpu_kernels_where_the_build_had_cuda(monkeypatch, cuda_version):
    info = types.SimpleNamespace(CUDA_VERSION=cuda_version)
    monkeypatch.setattr(op_library, "build_info", lambda: info)
    assert op_library.has_kernels_for("CPU")
    assert op_library.has_kernels_for("GPU") == (cuda_version is not None)
    assert not op_library.has_kernels_for("TPU")


def test_import_of_package_alone_registers_the_ops_with_any_patch_of_tensorflow(copy):
    """A server deserialises graphs with our ops, but calls none of our functions."""
    graph = tf.Graph()
    with graph.as_default():
        variables = [tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[2])] * 3
        powers = [tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[1])] * 2
        numbers = [tf.constant(0.1)] * 4
        op_library.load().resource_apply_adam_async(
            *variables, *powers, *numbers, tf.zeros([2])
        )
    graph_file = copy.package.parent / "graph.pb"
    graph_file.write_bytes(graph.as_graph_def().SerializeToString())
    program = f"""
import tensorflow as tf
graph_def = tf.compat.v1.GraphDef.FromString(open({str(graph_file)!r}, "rb").read())
try:
    tf.import_graph_def(graph_def)
except tf.errors.NotFoundError as error:
    print(error)
import tf_syncrep
tf.import_graph_def(graph_def)
print(tf_syncrep.library_path())
"""
    copy.set_built_for(f"{op_library.minor_version(tf.__version__)}.99")
    result = copy.run("-c", program)
    assert result.returncode == 0, result.stderr
    *without, library = result.stdout.splitlines()
    assert "ResourceApplyAdamAsync" in "\n".join(without)
    assert library == str(copy.library)


def test_other_tensorflow_minor_is_an_error_at_import(copy):
    copy.set_built_for("2.14.1")
    copy.set_distribution(tfs.__version__, "")  # not from a wheel
    assert _fail_to_import(copy).startswith(
        f"tf_syncrep was built for TensorFlow 2.14.1, and TensorFlow {tf.__version__} "
        "is running; a library runs only with the minor version that it was built for. "
        f"Install tf_syncrep for it:\n  {sys.executable} -m pip install --no-cache-dir "
        "--force-reinstall --no-deps "
    )


@pytest.mark.parametrize(
    ("direct_url", "beside"),
    [
        ('{"url": "file:///my%20wheels/a.whl", "archive_info": {}}', "'/my wheels'"),
        pytest.param("", None, marks=pytest.mark.slow),
    ],
)
def test_wheel_for_another_tensorflow_names_the_wheel_for_this_one(
    copy, direct_url, beside
):
    copy.set_built_for("2.14.1")
    copy.set_distribution(f"{tfs.__version__}+tf2.14", direct_url)
    minor = op_library.minor_version(tf.__version__)
    assert _fail_to_import(copy).strip() == (
        f"tf_syncrep was built for TensorFlow 2.14.1, and TensorFlow {tf.__version__} "
        "is running; a library runs only with the minor version that it was built for. "
        f"Install tf_syncrep for it:\n  {sys.executable} -m pip install --no-deps "
        f"{f'--find-links {beside} ' if beside else ''}"
        f"'tf_syncrep=={tfs.__version__}+tf{minor}'"
    )


def test_absent_tensorflow_is_an_error_at_import(copy):
    copy.set_built_for("2.21.0")
    copy.hide_module("tensorflow")
    assert _fail_to_import(copy, in_a_fork=False).strip() == (
        "tf_syncrep was built for TensorFlow 2.21.0, and TensorFlow cannot be imported "
        "here (No module named 'tensorflow'). Install it:\n"
        f"  {sys.executable} -m pip install 'tensorflow==2.21.*'    (or tensorflow-cpu)"
    )


@pytest.mark.parametrize(
    "missing", ["library", pytest.param("build_info", marks=pytest.mark.slow)]
)
def test_missing_library_is_an_error_at_import(copy, missing):
    copy.set_distribution(tfs.__version__, "")
    getattr(copy, missing).unlink()
    assert _fail_to_import(copy).startswith(
        f"tf_syncrep has no op library: {copy.library} was not built. Build it:\n  "
    )


def test_script_beside_sources_without_a_build_uses_what_is_installed(tmp_path):
    """As it does in a clone after `make`, which installs a copy."""
    sources, installed = PackageCopy(tmp_path / "clone"), PackageCopy(tmp_path / "site")
    for built in (sources.library, sources.build_info):
        built.unlink()
    installed.set_distribution(tfs.__version__, "")
    script = sources.package.parent / "train.py"
    script.write_text(
        f"import sys; sys.path.insert(1, {str(installed.package.parent)!r})\n"
        "import tf_syncrep; from tf_syncrep import keras\n"
        "print(tf_syncrep.library_path(), tf_syncrep.__file__, keras.__file__)\n"
    )
    result = sources.run(str(script))
    assert result.returncode == 0, result.stderr
    files = ("libtf_syncrep.so", "__init__.py", "keras.py")
    assert result.stdout.split() == [str(installed.package / x) for x in files]


def test_sources_with_a_build_are_used_in_spite_of_what_is_installed(tmp_path):
    sources, installed = PackageCopy(tmp_path / "clone"), PackageCopy(tmp_path / "site")
    installed.set_distribution(tfs.__version__, "")
    result = sources.run_in_a_fork(
        f"sys.path.insert(1, {str(installed.package.parent)!r}); "
        "sys.argv = ['tf-syncrep']; import tf_syncrep; print(tf_syncrep.library_path())"
    )
    assert result.stdout.splitlines() == [str(sources.library)], result.stderr


@pytest.mark.parametrize(
    ("built_for", "remedy"),
    [(None, "Build it"), ("2.14.1", "Install tf_syncrep for it")],
)
def test_sources_without_a_library_name_themselves_in_the_command(
    copy, built_for, remedy
):
    copy.set_distribution(f"{tfs.__version__}+tf2.14", "")
    if built_for is None:
        copy.library.unlink()
    else:
        copy.set_built_for(built_for)
    folder = copy.package.parent
    (folder / "CMakeLists.txt").touch()
    command = f"{sys.executable} -m pip install -e {folder}"
    assert _fail_to_import(copy).strip().endswith(f"{remedy}:\n  {command}")


def test_tests_of_a_source_tree_that_was_not_built_say_so_once(copy):
    copy.set_distribution(tfs.__version__, "")
    copy.library.unlink()
    tests = copy.package.parent / "tests"
    tests.mkdir()
    shutil.copy(pathlib.Path(__file__).parents[1] / "conftest.py", tests)
    for name in ("a", "b"):
        (tests / f"test_{name}.py").write_text("import tf_syncrep\ndef test(): pass\n")
    result = copy.run("-m", "pytest", "-p", "no:cacheprovider", "tests")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert result.stdout == ""
    assert result.stderr.startswith(
        f"ERROR: tf_syncrep is imported from {copy.package}, where its op library was "
        "not built. Run `make test`"
    )


def test_library_that_does_not_load_is_an_error_at_import(copy):
    copy.library.write_bytes(b"not a library")
    error = _fail_to_import(copy)
    assert error.startswith(
        f"tf_syncrep's op library, built for TensorFlow {tf.__version__}, does not "
        f"load into TensorFlow {tf.__version__}: {copy.library}: "
    )
    assert "\nBuild it again:\n  " in error


def test_own_command_starts_without_the_library(copy):
    copy.library.unlink()
    copy.hide_module("tensorflow")
    result = copy.run("-m", "tf_syncrep", "--help")
    assert result.returncode == 0, result.stderr
    assert "doctor" in result.stdout


@pytest.mark.parametrize(
    ("direct_url", "ending"),
    [
        ('{"url": "file:///my%20src", "dir_info": {}}', "'/my src'"),
        ('{"url": "file:///a/tfs.whl", "archive_info": {}}', "PATH_TO_THE_SOURCE_OF"),
        (None, "PATH_TO_THE_SOURCE_OF_TF_SYNCREP"),
    ],
)
def test_build_command_names_the_source_that_pip_recorded(
    monkeypatch, direct_url, ending, tmp_path
):
    monkeypatch.setattr(op_library, "_PACKAGE_FOLDER", str(tmp_path / "tf_syncrep"))
    distribution = types.SimpleNamespace(read_text=lambda name: direct_url)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: distribution)
    assert f" --no-deps {ending}" in op_library.build_command()


def test_public_names_are_there_and_no_others():
    assert set(tfs.__all__) <= set(dir(tfs))
    for name in tfs.__all__:
        assert getattr(tfs, name) is not None
    with pytest.raises(AttributeError, match="'tf_syncrep' has no attribute 'nothing'"):
        tfs.nothing  # noqa: B018


def test_error_within_keras_is_told_as_it_is(monkeypatch):
    error = ImportError("cannot import name 'Scope' from 'keras.src.backend'")
    monkeypatch.setattr(tfs, "_keras_error", error)
    with pytest.raises(
        ImportError, match=r"\.keras cannot be imported: cannot .* 'Scope'"
    ):
        tfs.__getattr__("keras")


def test_version_is_that_of_the_distribution():
    public, _, tensorflow = importlib.metadata.version("tf_syncrep").partition("+")
    assert tfs.__version__ == public
    # The message for a wheel says more.
    minor = op_library.minor_version(tf.__version__)
    assert tensorflow in ("", f"tf{minor}")
