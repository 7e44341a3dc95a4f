"""The TFJob manifest, against the operator's schema and against what it starts."""

import json

import manifests
import pytest

from tf_syncrep.python.distribute import cluster

training = pytest.importorskip(
    "kubeflow.training", reason="kubeflow-training has the operator's schema"
)
kubernetes = pytest.importorskip("kubernetes.client")


def _manifest():
    (manifest,) = manifests.load("tfjob.yaml")
    return manifest


def _violations(manifest):
    clients = training, kubernetes.models
    return manifests.violations(manifest, "KubeflowOrgV1TFJob", clients)


def test_the_manifest_has_what_the_schema_knows_and_requires():
    assert _violations(_manifest()) == []


def test_what_breaks_the_schema_is_found():
    manifest = _manifest()
    spec = manifest["spec"]
    servers = spec["tfReplicaSpecs"]["PS"]
    servers["replicas"] = "2"
    del servers["template"]["spec"]["containers"][0]["name"]
    spec["tfReplicaSpec"] = {}
    found = "\n".join(_violations(manifest))
    assert "has no 'tfReplicaSpec'" in found
    assert "must be a int. Received: '2'" in found
    assert "`name`, must not be `None`" in found


def test_the_operator_finds_what_it_looks_for_by_name():
    """Not in the schema, but in the operator: types, container, port, policies."""
    spec = _manifest()["spec"]
    assert set(spec["tfReplicaSpecs"]) == {"Chief", "Worker", "PS"}
    assert spec["tfReplicaSpecs"]["Chief"]["replicas"] == 1
    assert spec["runPolicy"]["cleanPodPolicy"] in ("All", "Running", "None")
    for replica in spec["tfReplicaSpecs"].values():
        assert replica["restartPolicy"] in ("Always", "OnFailure", "Never", "ExitCode")
        (container,) = replica["template"]["spec"]["containers"]
        assert container["name"] == "tensorflow"
        assert container["ports"] == [{"name": "tfjob-port", "containerPort": 2222}]


def test_all_tasks_run_the_same_image_and_a_script_that_it_has():
    replicas = _manifest()["spec"]["tfReplicaSpecs"].values()
    containers = [r["template"]["spec"]["containers"][0] for r in replicas]
    assert len({(c["image"], *c["args"]) for c in containers}) == 1
    manifests.assert_runs_an_example(containers[0]["args"])


def test_tf_config_as_the_operator_writes_it_is_understood():
    manifest = _manifest()
    name = manifest["metadata"]["name"]
    addresses = {
        kind.lower(): [
            f"{name}-{kind.lower()}-{i}.default.svc:2222"
            for i in range(spec["replicas"])
        ]
        for kind, spec in manifest["spec"]["tfReplicaSpecs"].items()
    }
    for job, index in (("chief", 0), ("worker", 3), ("ps", 1)):
        task = {"type": job, "index": index}
        config = {"cluster": addresses, "task": task, "environment": "cloud"}
        read = cluster.read_tf_config({"TF_CONFIG": json.dumps(config)})
        assert read.address == f"criteo-dlrm-{job}-{index}.default.svc:2222"
        assert read.rpc_layer == "grpc"
