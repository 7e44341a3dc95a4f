"""The NetworkPolicy manifest, against Kubernetes' schema and the job's pods."""

import manifests
import pytest

kubernetes = pytest.importorskip("kubernetes.client")

# This label, which JobSet's controller gives pods, is in no schema.
LABEL = "jobset.sigs.k8s.io/jobset-name"


def _policy():
    (policy,) = manifests.load("network_policy.yaml")
    return policy


def _as_the_schema_has_it(policy):
    """Removes its parts; ValueError if a type is wrong, or something is missing."""
    parsed = kubernetes.V1NetworkPolicy.from_dict(policy)
    return kubernetes.ApiClient().sanitize_for_serialization(parsed)


def test_the_manifest_has_what_the_schema_knows_and_requires():
    assert _as_the_schema_has_it(_policy()) == _policy()


def test_only_pods_of_the_job_reach_it_and_only_at_its_port():
    (job,) = manifests.load("jobset.yaml")
    pods = {"matchLabels": {LABEL: job["metadata"]["name"]}}
    policy = _policy()["spec"]
    assert policy["podSelector"] == pods
    # With this type, traffic that no rule allows is dropped.
    assert policy["policyTypes"] == ["Ingress"]
    (rule,) = policy["ingress"]
    assert rule["from"] == [{"podSelector": pods}]
    (port,) = rule["ports"]
    assert port == {"protocol": "TCP", "port": 2222}
    text = (manifests.ROOT / "deploy" / "jobset.yaml").read_text()
    assert text.count("containerPort: 2222") == text.count("containerPort:") == 3
