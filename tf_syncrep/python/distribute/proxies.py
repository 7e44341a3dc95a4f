"""Keeps the calls between tasks away from proxies."""

from collections.abc import Mapping

from tf_syncrep.python.distribute.cluster import TaskConfig, split_address

# gRPC sends every channel through the proxy that grpc_proxy, https_proxy or http_proxy
# names, unless the host is in the first of these that is set.
_ONLY_GRPC = "no_grpc_proxy"
_ALL_PROGRAMS = ("no_proxy", "NO_PROXY")


def environment(config: TaskConfig, base: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment in which gRPC uses no proxy for the tasks of a cluster.

    A proxy that does not reach them would make TensorFlow wait for ever.
    """
    environ = dict(base)
    tasks = [split_address(x)[0] for tasks in config.cluster.values() for x in tasks]
    only_grpc = [_ONLY_GRPC] if _ONLY_GRPC in environ else []
    for variable in (*only_grpc, *_ALL_PROGRAMS):
        hosts = filter(None, environ.get(variable, "").split(","))
        environ[variable] = ",".join(dict.fromkeys([*hosts, *tasks]))
    return environ
