"""The JobSet manifest: its schema, and the bridge from it to TF_CONFIG.

The schema is that in the client of Kubeflow's Trainer v2, which starts JobSets.
"""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

import commands
import manifests
import pytest

from tf_syncrep.python.distribute import cluster, ports
from tf_syncrep.python.ops.notice_ops import GRACE_VARIABLE

models = pytest.importorskip(
    "kubeflow_trainer_api.models", reason="kubeflow-trainer-api has JobSet's schema"
)

SCRIPT = pathlib.Path(__file__).parents[2] / "deploy" / "jobset_task.py"
# Runs a command as root, with a file of its own as /etc/hosts.
MOUNT = 'mount --bind "$0" /etc/hosts && exec "$@"'
WITH_HOSTS = ["unshare", "--map-root-user", "--mount", "sh", "-c", MOUNT]


def _manifest():
    (manifest,) = manifests.load("jobset.yaml")
    return manifest


def _pods(manifest):
    """By task type, how many pods a job has, and their specification."""
    jobs = {
        x["name"]: x["template"]["spec"] for x in manifest["spec"]["replicatedJobs"]
    }
    return {
        name: (job["completions"], job["template"]["spec"])
        for name, job in jobs.items()
    }


def _as_the_schema_has_it(manifest):
    """Removes its parts; ValueError if a type is wrong, or something is missing."""
    return models.JobsetV1alpha2JobSet.from_dict(manifest).to_dict()


def test_the_manifest_has_what_the_schema_knows_and_requires():
    manifest = _manifest()
    assert _as_the_schema_has_it(manifest) == manifest


def test_it_fits_into_a_runtime_of_the_trainer():
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": "parameter-servers"},
        "spec": {"template": {"spec": _manifest()["spec"]}},
    }
    model = models.TrainerV1alpha1TrainingRuntime.from_dict(runtime)
    assert model.to_dict() == runtime


def test_jobs_are_task_types_and_their_pods_tasks():
    manifest = _manifest()
    pods = _pods(manifest)
    assert set(pods) == {"chief", "worker", "ps"}
    for replicated in manifest["spec"]["replicatedJobs"]:
        assert replicated["replicas"] == 1
        job = replicated["template"]["spec"]
        assert job["parallelism"] == job["completions"]
        # Otherwise pods would not be named by their index.
        assert job["completionMode"] == "Indexed"
    assert manifest["spec"]["successPolicy"]["targetReplicatedJobs"] == ["chief"]
    assert manifest["spec"]["network"]["enableDNSHostnames"]


def test_all_tasks_run_the_same_image_and_a_script_that_it_has():
    manifest = _manifest()
    containers = [spec["containers"] for _, spec in _pods(manifest).values()]
    assert len({json.dumps([x["command"], x["args"]]) for (x,) in containers}) == 1
    ((first,), *_) = containers
    assert len({container["image"] for (container,) in containers}) == 1
    assert first["command"] == ["python", "/app/deploy/jobset_task.py"]
    assert SCRIPT.is_file()
    options = [x for x in first["args"] if x.startswith(("--workers", "--ps"))]
    assert options == [
        f"--{x}={_pods(manifest)[y][0]}"
        for x, y in (("workers", "worker"), ("ps", "ps"))
    ]
    script, *arguments = first["args"][len(options) :]
    source = (manifests.ROOT / script.removeprefix("/app/")).read_text()
    for argument in arguments:
        assert not argument.startswith("--") or f'add("{argument}"' in source, argument


def test_the_coordinator_knows_the_pods_time_to_end():
    for _, spec in _pods(_manifest()).values():
        (container,) = spec["containers"]
        (grace,) = [x for x in container["env"] if x["name"] == GRACE_VARIABLE]
        assert grace["value"] == str(spec["terminationGracePeriodSeconds"])


def _environment(job, index, jobset="criteo-dlrm"):
    """The environment that the manifest's `env`, and Kubernetes, set in a pod."""
    _, spec = _pods(_manifest())["worker"]
    labels = {
        "jobset.sigs.k8s.io/jobset-name": jobset,
        "jobset.sigs.k8s.io/replicatedjob-name": job,
    }
    environment = {
        variable["name"]: variable.get("value")
        or labels[variable["valueFrom"]["fieldRef"]["fieldPath"].split("'")[1]]
        for variable in spec["containers"][0]["env"]
    }
    return {**environment, "JOB_COMPLETION_INDEX": str(index)}


def _run(environment, script):
    # All tasks run the script: no server answers at these addresses.
    options = ("--workers", 4, "--ps", 2, "--run-script-on", "all")
    words = (*options, script, "--its-own", 1)
    return commands.run(*words, program=[sys.executable, str(SCRIPT)], env=environment)


@pytest.mark.parametrize(
    ("job", "index"), [("chief", 0), ("worker", 3), ("ps", 1), ("evaluator", 0)]
)
def test_each_pod_has_its_place_and_the_names_of_all(tmp_path, job, index):
    script = tmp_path / "script.py"
    script.write_text("import os, sys; print(os.environ['TF_CONFIG'], *sys.argv[1:])")
    result = _run(_environment(job, index), script)
    assert result.process.returncode == 0, result.output
    config, _, args = result.stdout[0].rpartition("}")
    task = cluster.read_tf_config({"TF_CONFIG": config + "}"})
    assert (task.task_type, task.task_index) == (job, index)
    # The name of a pod in the subdomain that a JobSet makes.
    assert task.cluster == {
        of: [f"criteo-dlrm-{of}-0-{i}.criteo-dlrm:2222" for i in range(size)]
        for of, (size, _) in _pods(_manifest()).items()
    }
    assert args.split() == ["--its-own", "1"]


def test_what_is_no_pod_of_a_jobset_is_refused(tmp_path):
    result = _run({"JOBSET_NAME": "criteo-dlrm"}, tmp_path / "script.py")
    assert result.process.returncode == 2
    assert (
        "error: start it in a pod of a JobSet, with REPLICATED_JOB_NAME, "
        "JOB_COMPLETION_INDEX in its environment: see deploy/jobset.yaml"
    ) in result.output


# The chief does not listen, and with such a filter nobody waits for it.
_USES_THE_SERVER = """
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
(address,) = resolver.cluster_spec().job_tasks("ps")
with tf.device("/job:ps/task:0"):
    answer = tf.constant(20) + 22
config = tf.ConfigProto(device_filters=["/job:ps"])
with tf.Session(f"grpc://{address}", config=config) as session:
    print("computed", session.run(answer), "at", address)
"""


@pytest.mark.ci
@pytest.mark.one_version
def test_chief_waits_for_a_server_by_its_name_and_uses_it(tmp_path):
    """With names of pods that lead to this machine; the chief is there first."""
    if (
        shutil.which("unshare") is None
        or subprocess.run(
            [*WITH_HOSTS, os.devnull, "true"], capture_output=True
        ).returncode
    ):
        pytest.skip("no process can have an /etc/hosts of its own here")
    script, hosts = tmp_path / "train.py", tmp_path / "hosts"
    script.write_text(_USES_THE_SERVER)
    hosts.write_text("127.0.0.1 localhost job-ps-0-0.job job-chief-0-0.job\n")
    reserved = ports.ReservedPort()

    def start(job):
        options = ("--workers", 0, "--ps", 1, "--port", reserved.number)
        env = {**_environment(job, 0, "job"), ports.REUSE_PORT_VARIABLE: "true"}
        env["TF_CPP_MIN_LOG_LEVEL"] = "2"
        program = [*WITH_HOSTS, str(hosts), sys.executable, str(SCRIPT)]
        # The source is there as well, but has no library.
        cwd = manifests.ROOT
        return commands.Command(*options, script, program=program, env=env, cwd=cwd)

    with contextlib.ExitStack() as at_end, start("chief") as chief:
        at_end.callback(reserved.release)
        with start("ps") as server:
            address = f"job-ps-0-0.job:{reserved.number}"
            server.wait_for_line(f"serving ps 0 at {address} ")
            assert chief.wait() == 0, chief.output
        assert "1 servers answer after" in chief.output
        assert f"computed 42 at {address}" in chief.output
