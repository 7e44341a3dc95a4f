"""The NetworkPolicy manifests, against Kubernetes' schema and the jobs' pods."""

import manifests
import pytest

kubernetes = pytest.importorskip("kubernetes.client")

# Not in a schema: labels that JobSet's controller and the training operator give pods.
LABELS = {
    "jobset.yaml": "jobset.sigs.k8s.io/jobset-name",
    "tfjob.yaml": "training.kubeflow.org/job-name",
}


def _policies():
    return manifests.load("network_policy.yaml")


def _violations(policy):
    return manifests.violations(policy, "V1NetworkPolicy", [kubernetes.models])


def test_the_manifests_have_what_the_schema_knows_and_requires():
    assert [violation for x in _policies() for violation in _violations(x)] == []


def test_what_breaks_the_schema_is_found():
    policy = _policies()[0]
    policy["spec"]["ingress"][0]["form"] = policy["spec"]["ingress"][0].pop("from")
    assert any("has no 'form'" in violation for violation in _violations(policy))


@pytest.mark.parametrize("manifest", LABELS)
def test_only_pods_of_the_job_reach_it_and_only_at_its_port(manifest):
    (job,) = manifests.load(manifest)
    labels = {LABELS[manifest]: job["metadata"]["name"]}
    (policy,) = (
        x["spec"]
        for x in _policies()
        if x["spec"]["podSelector"]["matchLabels"] == labels
    )
    # With this type, what no rule lets in stays out.
    assert policy["policyTypes"] == ["Ingress"]
    (rule,) = policy["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": labels}}]
    (port,) = rule["ports"]
    assert port == {"protocol": "TCP", "port": 2222}
    text = (manifests.ROOT / "deploy" / manifest).read_text()
    assert text.count("containerPort: 2222") == text.count("containerPort:") == 3


def test_the_operators_client_knows_the_label():
    constants = pytest.importorskip("kubeflow.training.constants.constants")
    assert LABELS["tfjob.yaml"] == constants.JOB_NAME_LABEL
