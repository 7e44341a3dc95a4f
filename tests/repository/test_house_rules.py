"""Rules that hold for the whole tree. Each failure names the place and the remedy."""

import ast
import importlib
import pathlib
import re
import subprocess

import pytest

import tf_syncrep as tfs
from tf_syncrep.python import doctor

ROOT = pathlib.Path(__file__).resolve().parents[2]

# A layer of tf_syncrep/cc may include itself and these.
CC_LAYERS = {
    "lib": set(),
    "preload": {"lib"},
    "tf": {"lib"},
    "ops": {"lib", "tf"},
    "kernels": {"lib", "tf", "ops"},
    "wire": {"lib"},
}
# A layer of tf_syncrep/python may import itself and these.
PYTHON_LAYERS = {
    "ops": set(),
    "base": set(),
    "sync": {"ops", "base"},
    "embedding": {"ops"},
    "checkpoint": {"ops", "base"},
    "v1": {"ops", "base", "sync", "embedding", "checkpoint", "serving"},
    "data": {"ops", "base"},
    "keras": {
        *("ops", "base", "sync", "embedding", "checkpoint", "data", "distribute"),
        "serving",
    },
    "distribute": {"ops"},
    # No module that loads the op library.
    "serving": {"base", "checkpoint"},
    "report": {"base"},
}
# A folder of tf_syncrep/python/keras may import itself and these.
KERAS_LAYERS = {
    "compat": set(),
    "tables": {"compat"},
    "optimizers": {"compat", "tables"},
    "embedding": {"compat", "tables", "optimizers"},
    "transfers": {"compat"},
    "sync_replicas": {"compat", "tables", "optimizers", "transfers"},
    "checkpoint": {"compat", "tables", "sync_replicas"},
    "publishing": {"compat", "tables", "sync_replicas", "checkpoint"},
    "fit": {
        "compat",
        "tables",
        "embedding",
        "transfers",
        "sync_replicas",
        "checkpoint",
    },
}
# The modules beside these folders that all of them but compat may import.
KERAS_MODULES = {
    "builds",
    "cluster",
    "optimizer_slots",
    "parts",
    "placement",
    "training_clock",
}


def _files(*patterns: str) -> list[pathlib.Path]:
    """Returns the matching files of the tree, without those of builds and tools."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        # Parameters of tests are files: these are asked for at import.
        pytest.skip(
            "not a git checkout: house rules are for the repository",
            allow_module_level=True,
        )
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return sorted(
        path
        for path in paths
        if path.is_file() and any(path.match(pattern) for pattern in patterns)
    )


def _name(path: pathlib.Path) -> str:
    return str(path.relative_to(ROOT))


def _imports(path: pathlib.Path) -> list[tuple[int, str]]:
    """Returns the line and the full name of each imported module or name."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [
                (node.lineno, f"{node.module}.{alias.name}") for alias in node.names
            ]
    return found


def _places(pattern: str, paths: list[pathlib.Path]) -> list[str]:
    """Returns file:line of each line that matches."""
    return [
        f"{_name(path)}:{number}"
        for path in paths
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if re.search(pattern, line)
    ]


def _registered_ops() -> list[tuple[str, pathlib.Path]]:
    return [
        (name, path)
        for path in _files("tf_syncrep/cc/ops/*.cc")
        for name in re.findall(r'REGISTER_OP\(\s*"([^"]+)"\)', path.read_text())
    ]


def _wrapper_name(op: str) -> str:
    """Returns the name of an op's function: Syncrep>ApplyAdam to apply_adam."""
    words = re.findall("[A-Z]+[a-z0-9]*", op.removeprefix("Syncrep>"))
    return "_".join(words).lower()


def test_private_api_of_tensorflow_and_keras_is_in_compat_modules_only():
    private = ("tensorflow.python", "keras.src", "tf_keras.src")
    places = [
        f"{_name(path)}:{line} imports {name}"
        for path in _files("*.py")
        if "compat" not in path.relative_to(ROOT).with_suffix("").parts
        for line, name in _imports(path)
        if name.startswith(private)
    ]
    assert places == [], (
        "Use public API. Where there is none, put the use into a compat module, with a "
        "comment that says why and on which versions it was checked."
    )


def test_compat_modules_say_on_which_versions_they_were_checked():
    silent = [
        _name(path)
        for path in _files("*/compat.py", "*/compat/__init__.py")
        if not re.search(r"2\.15[\s\S]*2\.22", path.read_text())
    ]
    assert silent == [], "Name the oldest and the newest TensorFlow it was checked on."


def test_cc_layers_use_only_those_below():
    wrong = []
    for path in _files(
        "tf_syncrep/cc/*/*.cc",
        "tf_syncrep/cc/*/*.h",
        "tf_syncrep/cc/lib/*/*.cc",
        "tf_syncrep/cc/lib/*/*.cu",
        "tf_syncrep/cc/lib/*/*.h",
    ):
        layer = path.relative_to(ROOT / "tf_syncrep" / "cc").parts[0]
        for header in re.findall(r'#include "([^"]+)"', path.read_text()):
            used = re.fullmatch(r"tf_syncrep/cc/(\w+)/.*", header)
            if used and used[1] not in CC_LAYERS[layer] | {layer}:
                wrong.append(f"{_name(path)} includes {header}")
            if layer == "lib" and not used:
                wrong.append(f"{_name(path)} includes {header}")
    assert wrong == [], (
        "cc/lib uses the C++ standard library alone, and each layer those below it: "
        f"{CC_LAYERS}. Move the code down, or pass what it needs as an argument."
    )


def test_python_layers_use_only_those_below():
    wrong = []
    for path in _files("*.py"):
        place = path.relative_to(ROOT).parts
        if place[:2] != ("tf_syncrep", "python") or len(place) == 3:
            continue
        layer = place[2]
        for line, name in _imports(path):
            used = re.match(r"tf_syncrep\.python\.(\w+)", name)
            allowed = PYTHON_LAYERS[layer] | {layer}
            if used and used[1] not in allowed:
                wrong.append(f"{_name(path)}:{line} imports {name}")
    assert wrong == [], f"A layer may import those below it: {PYTHON_LAYERS}."


def test_keras_layers_use_only_those_below():
    wrong = []
    for path in _files("*.py"):
        place = path.relative_to(ROOT).parts
        if place[:3] != ("tf_syncrep", "python", "keras"):
            continue
        room = place[3]
        if room in KERAS_LAYERS:
            allowed = KERAS_LAYERS[room] | {room}
            if room != "compat":
                allowed |= KERAS_MODULES
        elif room.removesuffix(".py") in KERAS_MODULES:
            allowed = KERAS_MODULES | {"compat"}
        else:
            continue
        for line, name in _imports(path):
            used = re.match(r"tf_syncrep\.python\.keras\.(\w+)", name)
            if used and used[1] not in allowed:
                wrong.append(f"{_name(path)}:{line} imports {name}")
    assert wrong == [], (
        f"A folder of keras may import those below it, {KERAS_LAYERS}, and modules "
        f"that need none of them, {KERAS_MODULES}."
    )


def test_every_keras_folder_has_its_layer_and_none_is_in_a_circle():
    folders = {
        path.parent.name for path in _files("tf_syncrep/python/keras/*/__init__.py")
    }
    assert folders == set(KERAS_LAYERS), "Say in KERAS_LAYERS what the folder may use."
    # The folders are listed from the lowest to the highest.
    above = [
        f"{room} uses {used}"
        for place, room in enumerate(KERAS_LAYERS)
        for used in KERAS_LAYERS[room] - {*list(KERAS_LAYERS)[:place]}
    ]
    assert above == [], "No folder uses one that is listed after it."


def test_tests_do_not_import_from_benchmarks():
    benchmarks = {path.stem for path in _files("benchmarks/*.py")} | {"harness"}
    tests = {path.stem for path in _files("*.py") if _name(path).startswith("tests/")}
    wrong = [
        f"{_name(path)}:{line} imports {name}"
        for path in _files("*.py")
        if _name(path).startswith("tests/")
        # Tests of the benchmarks themselves are in a folder of their own.
        and not _name(path).startswith("tests/benchmarks/")
        for line, name in _imports(path)
        if name.partition(".")[0] in benchmarks - tests
    ]
    assert wrong == [], "Move what both need into tests/helpers."


def test_what_lies_in_python_does_not_import_the_public_modules_above_it():
    wrong = [
        f"{_name(path)}:{line} imports {name}"
        for path in _files("*.py")
        if _name(path).startswith("tf_syncrep/python/")
        for line, name in _imports(path)
        if re.match(r"tf_syncrep(?!\.(python|_build_info)\b)", name)
    ]
    assert wrong == [], "Import the module of tf_syncrep/python that has it."


def test_documents_and_examples_use_public_names_only():
    internal = r"\btf_syncrep\.python\b|\btfs\.python\b"
    shown = [
        path
        for path in _files("*.md", "*.py", "*.yaml", "*.sh", "*.sbatch", "Dockerfile")
        if path.suffix == ".md" or _name(path).startswith(("examples/", "deploy/"))
    ]
    assert _places(internal, shown) == [], "Name what is public: tfs.distribute, say."
    in_docstrings = [
        f"{_name(path)}: {getattr(node, 'name', 'the module')}"
        for path in _files("*.py")
        if _name(path).startswith("tf_syncrep/")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and re.search(internal, ast.get_docstring(node) or "")
    ]
    assert in_docstrings == [], "Name what is public in docstrings."


def test_tensorflow_versions_are_distinguished_in_cc_tf_only():
    sources = _files("*.cc", "*.h", "*.cu")
    others = [path for path in sources if path.parent.name != "tf"]
    assert _places(r"\bTF_(MAJOR|MINOR|PATCH)_VERSION\b", others) == [], (
        "Put what differs between versions of TensorFlow into tf_syncrep/cc/tf."
    )


@pytest.mark.parametrize(
    ("op", "path"), [pytest.param(op, path, id=op) for op, path in _registered_ops()]
)
def test_op_has_shape_function_wrapper_and_test_and_is_described_once(op, path):
    text = path.read_text()
    declaration = text[text.index(f'"{op}"') :].partition(";")[0]
    assert ".SetShapeFn(" in declaration, f"{op} in {_name(path)} has no shape function"
    name = _wrapper_name(op)
    module = importlib.import_module(f"tf_syncrep.python.ops.{path.stem}")
    docstring = getattr(module, name).__doc__ or ""
    doc = re.sub(r'"\s+"', "", declaration.partition(".Doc(")[2]).strip()
    if name in tfs.ops.__all__:
        assert re.fullmatch(rf'"[^"\n]*: see tfs\.ops\.{name}\."\)', doc), (
            f"{op} in {_name(path)}: the Doc is a sentence that ends with ': see "
            f"tfs.ops.{name}.', whose docstring says all that there is to say"
        )
        for section in ("Args:|arguments are those of|is the same as", "Returns:"):
            assert re.search(section, docstring), f"tfs.ops.{name}: {section}?"
    else:
        assert 'R"doc(' in doc, f"{op} in {_name(path)} has no Doc"
        is_wrapped = name in vars(module)  # Otherwise it is TensorFlow's own function.
        assert not is_wrapped or re.fullmatch(rf"[^\n]*: {op}\.", docstring), (
            f"{module.__name__}.{name}: the docstring is a line that ends with "
            f"': {op}.', whose Doc says all that there is to say"
        )
    topic = path.stem.removesuffix("_ops")
    tests = _files(
        f"tests/ops/test_{topic}*.py", "tests/helpers/*.py", "tests/twins/*.py"
    )
    assert any(re.search(rf"\b{name}\b", test.read_text()) for test in tests), (
        f"no test in tests/ops/test_{topic}*.py uses {name}"
    )


def test_no_file_names_a_path_or_a_registry_of_one_machine():
    folders = "|".join(("work", "opt/dev", "root", "home/[a-z]"))
    hosts = "|".join((r"pypi\.org", r"pythonhosted\.org", r"npmjs\.(org|com)"))
    files = _files("*.py", "*.toml", "*.md", "*.txt", "*.sh", "*.cc", "*.h", "*.cu")
    files += _files("*.cmake", "*.in", "*.bzl", "*.json", "*.yaml", "*.yml", "run")
    files += _files("Makefile", "BUILD", "WORKSPACE", ".bazelrc", "Dockerfile")
    places = _places(rf"(?<![\w.}}$])/({folders})(?=[/\"'\s])|({hosts})", files)
    assert places == [], "Take paths from the environment; leave registries to pip."


def test_cc_sources_begin_with_their_topic():
    silent = [
        _name(path)
        for path in _files("*.cc", "*.h", "*.cu")
        if not path.read_text().startswith("// ")
        and not (path.suffix in (".cc", ".cu") and path.with_suffix(".h").exists())
    ]
    assert silent == [], (
        "Begin the file, or the header of the same name, with a comment on its topic."
    )


def test_cmake_and_bazel_compile_with_the_same_options():
    cmake = (ROOT / "CMakeLists.txt").read_text()
    (options,) = re.findall(r"\nadd_compile_options\(([^)]*)\)", cmake)
    bazel = re.findall(r'"(-[fW][^"]*)"', (ROOT / "BUILD").read_text())
    missing = [option for option in options.split() if option not in bazel]
    assert missing == [], "Add these options of CMakeLists.txt to COPTS in BUILD."


def test_cmake_and_bazel_compile_cuda_alike():
    cmake = (ROOT / "cmake" / "cuda" / "CMakeLists.txt").read_text()
    rule = (ROOT / "third_party" / "cuda" / "cuda_configure.bzl").read_text()
    (gpus,) = re.findall(r"foreach\(architecture ([^)]*)\)", cmake)
    (bazel_gpus,) = re.findall(r"\n_ARCHITECTURES = (.*)\n", rule)
    assert gpus.split() == ast.literal_eval(bazel_gpus), (
        "cmake/cuda/CMakeLists.txt and third_party/cuda/cuda_configure.bzl must agree"
    )
    (options,) = re.findall(
        r"target_compile_options\(\s*tf_syncrep_cuda PRIVATE ([^)]*)\)", cmake
    )
    bazel = re.sub(r'"\s*\+\s*"', "", (ROOT / "BUILD").read_text())
    missing = [
        part
        for option in options.split()
        for part in option.removeprefix("-Xcompiler=").split(",")
        if part not in bazel
    ]
    assert missing == [], "Add these options of cmake/cuda/CMakeLists.txt to BUILD."


def test_supported_tensorflow_versions_are_the_same_everywhere():
    path = ROOT / "cmake" / "tensorflow_probe.py"
    (line,) = re.findall(r"\nOLDEST, NEWEST = (.*)\n", path.read_text())
    oldest, newest = (f"{major}.{minor}" for major, minor in ast.literal_eval(line))
    assert (oldest, newest) == (doctor.OLDEST_TENSORFLOW, doctor.NEWEST_TENSORFLOW), (
        "cmake/tensorflow_probe.py and tf_syncrep/python/doctor.py must agree"
    )
    for document in ("README.md", "docs/install.md"):
        text = (ROOT / document).read_text()
        assert oldest in text, f"{document} must name the oldest TensorFlow, {oldest}"
        assert newest in text, f"{document} must name the newest TensorFlow, {newest}"


def test_bazelisk_fetches_the_bazel_that_is_documented():
    (version,) = re.findall(
        r"^USE_BAZEL_VERSION=(.+)$", (ROOT / ".bazeliskrc").read_text(), re.MULTILINE
    )
    assert f", {version}, " in (ROOT / "docs" / "install.md").read_text()
    assert not (ROOT / ".bazelversion").exists(), (
        "Debian's bazel would look there for its version, and refuse to start."
    )


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("CHANGELOG.md", f"## [{tfs.__version__}]"),
        ("CITATION.cff", f"\nversion: {tfs.__version__}\n"),
    ],
)
def test_file_has_this_version(file, said):
    assert said in (ROOT / file).read_text(), f"{file} must say {said!r}"


def test_links_between_documents_lead_somewhere():
    broken = []
    for path in _files("*.md"):
        text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)", text):
            file, _, heading = target.partition("#")
            page = path.parent / file if file else path
            if "://" not in target and not (
                page.exists() and (not heading or heading in _headings(page))
            ):
                broken.append(f"{_name(path)} links to {target}")
    assert broken == []


def _headings(page: pathlib.Path) -> set[str]:
    """Returns the headings of a page as links name them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }
