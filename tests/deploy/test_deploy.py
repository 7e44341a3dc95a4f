"""deploy/ and docs/deploy.md: manifest, entry point, image, script for Slurm."""

import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import types

import clusters
import pytest

from tf_syncrep.python.distribute import cluster

yaml = pytest.importorskip("yaml", reason="the manifest is YAML")

ROOT = pathlib.Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
NAMES = {"Chief": "chief", "Worker": "worker", "PS": "ps"}


@pytest.fixture(scope="module")
def manifest():
    return yaml.safe_load((ROOT / "deploy" / "tfjob.yaml").read_text())


@pytest.fixture(scope="module")
def entrypoint():
    path = ROOT / "deploy" / "entrypoint.py"
    spec = importlib.util.spec_from_file_location("entrypoint", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def replicas(manifest):
    return manifest["spec"]["tfReplicaSpecs"]


def tf_config(manifest, task_type, index):
    """What the operator puts into TF_CONFIG."""
    job = manifest["metadata"]["name"]
    addresses = {
        NAMES[kind]: [
            f"{job}-{NAMES[kind]}-{i}.default.svc:2222" for i in range(spec["replicas"])
        ]
        for kind, spec in replicas(manifest).items()
    }
    task = {"type": task_type, "index": index}
    return json.dumps({"cluster": addresses, "task": task, "environment": "cloud"})


def test_the_manifest_is_what_the_operators_own_models_take(manifest):
    """Also no field is unknown to them: it would be missing in what comes back."""
    training = pytest.importorskip("kubeflow.training", reason="its SDK has the models")
    api = training.ApiClient()
    response = types.SimpleNamespace(data=json.dumps(manifest))
    job = api.deserialize(response, "KubeflowOrgV1TFJob")
    assert api.sanitize_for_serialization(job) == manifest


def test_the_manifest_is_a_tfjob_that_the_operator_can_name_tasks_in(manifest):
    assert manifest["apiVersion"] == "kubeflow.org/v1"
    assert manifest["kind"] == "TFJob"
    assert set(replicas(manifest)) == set(NAMES)
    assert replicas(manifest)["Chief"]["replicas"] == 1
    assert manifest["spec"]["runPolicy"]["cleanPodPolicy"] in ("Running", "All")
    policies = {kind: x["restartPolicy"] for kind, x in replicas(manifest).items()}
    assert policies == {"Chief": "Never", "Worker": "Always", "PS": "Never"}
    for spec in replicas(manifest).values():
        (container,) = spec["template"]["spec"]["containers"]
        assert container["name"] == "tensorflow"
        assert container["ports"] == [{"name": "tfjob-port", "containerPort": 2222}]


def test_the_chief_runs_the_example_and_the_others_are_served(manifest, entrypoint):
    (chief,) = replicas(manifest)["Chief"]["template"]["spec"]["containers"]
    script = chief["args"]
    assert (ROOT / script[0].removeprefix("/app/")).is_file()
    serve = [sys.executable, "-m", "tf_syncrep", "serve"]
    for task_type in NAMES.values():
        environ = {"TF_CONFIG": tf_config(manifest, task_type, 0)}
        words = entrypoint.command(script, environ)
        expected = [sys.executable, *script] if task_type == "chief" else serve
        assert words == expected


def test_serve_understands_what_the_operator_puts_into_tf_config(manifest):
    for task_type, index in (("chief", 0), ("worker", 2), ("ps", 1)):
        environ = {"TF_CONFIG": tf_config(manifest, task_type, index)}
        task = cluster.read_tf_config(environ)
        assert task.address == f"criteo-dlrm-{task_type}-{index}.default.svc:2222"
        assert task.rpc_layer == "grpc"


def test_the_entry_point_says_in_a_line_that_tf_config_is_missing(
    entrypoint, monkeypatch, capsys
):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert entrypoint.main() == 2
    error = capsys.readouterr().err
    assert error.startswith("entrypoint: error: TF_CONFIG is not set.")
    assert error.count("\n") == 1


def test_the_chiefs_arguments_are_options_of_the_example(manifest):
    (chief,) = replicas(manifest)["Chief"]["template"]["spec"]["containers"]
    source = (ROOT / "examples" / "criteo_dlrm.py").read_text()
    for argument in chief["args"][1:]:
        assert f'add("{argument.partition("=")[0]}"' in source, argument


def test_the_dockerfile_copies_what_is_there():
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    sources = [source for words in copied for source in words.split()]
    assert sources
    assert [x for x in sources if not (ROOT / x).exists()] == []


def test_the_dockerfile_has_only_known_instructions_and_ends_as_no_root():
    joined = re.sub(r"\\\n", " ", DOCKERFILE)
    lines = [x for x in joined.splitlines() if x.strip() and not x.startswith("#")]
    instructions = [line.split()[0] for line in lines]
    known = {
        *("FROM", "ARG", "RUN", "WORKDIR", "COPY", "USER", "ENV"),
        *("ENTRYPOINT", "CMD"),
    }
    assert set(instructions) <= known
    assert instructions[0] == "FROM"
    assert "USER trainer" in lines
    # A shell in between would keep signals from the task.
    for line in lines:
        if line.startswith(("ENTRYPOINT", "CMD")):
            assert isinstance(json.loads(line.partition(" ")[2]), list)


def test_the_entry_point_becomes_the_server():
    with clusters.Cluster(num_ps=0) as local:
        local.kill("worker-0")
        local.start(
            "worker-0", [sys.executable, str(ROOT / "deploy" / "entrypoint.py")]
        )
        local.wait_for_output("worker-0", "serving worker 0", occurrence=2)
        local.kill("worker-0", signal.SIGTERM)
        assert local.status("worker-0") == 128 + signal.SIGTERM


def test_the_script_for_slurm_gives_each_task_its_place(tmp_path):
    text = (ROOT / "docs" / "deploy.md").read_text()
    (script,) = re.findall(r"this `task.sh`:\n\n```sh\n(.*?)```", text, re.DOTALL)
    for name in ("tf-syncrep", "scancel", "python"):
        tool = tmp_path / name
        program = sys.executable if name == "python" else "true"
        tool.write_text(
            "#!/bin/bash\n"
            f'case "$1" in -) exec {program} - ;; esac\n'
            f'echo "{name} $*"; echo "$TF_CONFIG"\n'
        )
        tool.chmod(0o755)
    places = []
    for rank in range(6):
        environ = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "PORT": "2222",
            "PS": "2",
            "SLURM_PROCID": str(rank),
            "SLURM_JOB_ID": "7",
            "HOSTS": ",".join(f"node{i}" for i in range(6)),
        }
        output = subprocess.run(
            ["bash", "-c", script],
            env=environ, capture_output=True, text=True, check=True, timeout=60,
        ).stdout.splitlines()  # fmt: skip
        task = cluster.read_tf_config({"TF_CONFIG": output[1]})
        assert task.address == f"node{rank}:2222"
        places.append((output[0].split()[0], task.task_type, task.task_index))
    assert places == [
        ("python", "chief", 0),
        ("tf-syncrep", "ps", 0),
        ("tf-syncrep", "ps", 1),
        *(("tf-syncrep", "worker", i) for i in range(3)),
    ]
