"""The TFJob manifest, against the operator's schema and against what it starts.

Attributes and their types are those of the operator's and Kubernetes' Python clients,
which are generated from the schemas that a cluster checks manifests by.
"""

import json
import pathlib
import re

import pytest

from tf_syncrep.python.distribute import cluster

yaml = pytest.importorskip("yaml", reason="PyYAML reads the manifest")
training = pytest.importorskip(
    "kubeflow.training", reason="kubeflow-training has the operator's schema"
)
kubernetes = pytest.importorskip("kubernetes.client")

ROOT = pathlib.Path(__file__).parents[2]


def _manifest():
    return yaml.safe_load((ROOT / "deploy" / "tfjob.yaml").read_text())


def _violations(value, type_name, where):
    """What a value has that its type does not know, or lacks that it requires."""
    many = re.fullmatch(r"list\[(.*)\]|dict\(str, (.*)\)", type_name)
    if many:
        is_list = many[1] is not None
        if not isinstance(value, list if is_list else dict):
            return [f"{where} must be a {type_name}. Received: {value!r}"]
        items = enumerate(value) if is_list else value.items()
        inner = many[1] or many[2]
        return [v for k, x in items for v in _violations(x, inner, f"{where}[{k!r}]")]
    plain = {"str": str, "int": int, "bool": bool, "object": object}
    if type_name in plain:
        if isinstance(value, plain[type_name]):
            return []
        return [f"{where} must be a {type_name}. Received: {value!r}"]
    clients = training if hasattr(training, type_name) else kubernetes.models
    model = getattr(clients, type_name)
    names = {key: name for name, key in model.attribute_map.items()}
    found = [f"{where} has no {key!r}" for key in value if key not in names]
    attributes = {names[key]: item for key, item in value.items() if key in names}
    try:
        model(**attributes)  # Raises where something required is missing.
    except ValueError as error:
        found.append(f"{where}: {error}")
    for name, item in attributes.items():
        found += _violations(item, model.openapi_types[name], f"{where}.{name}")
    return found


def test_the_manifest_has_what_the_schema_knows_and_requires():
    assert _violations(_manifest(), "KubeflowOrgV1TFJob", "manifest") == []


def test_what_breaks_the_schema_is_found():
    manifest = _manifest()
    spec = manifest["spec"]
    servers = spec["tfReplicaSpecs"]["PS"]
    servers["replicas"] = "2"
    del servers["template"]["spec"]["containers"][0]["name"]
    spec["tfReplicaSpec"] = {}
    found = "\n".join(_violations(manifest, "KubeflowOrgV1TFJob", "manifest"))
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
    script, *args = containers[0]["args"]
    assert (ROOT / script.removeprefix("/app/")).is_file()
    source = (ROOT / "examples" / "criteo_dlrm.py").read_text()
    options = [arg for arg in args if arg.startswith("--")]
    assert [option for option in options if f'add("{option}"' not in source] == []


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
