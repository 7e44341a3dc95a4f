"""How tasks talk to each other: by gRPC alone, or by a wire of our own beside it.

libtf_syncrep_wire.so (tf_syncrep/cc/wire) gives TensorFlow a server for the protocol
"grpc+tfs". Tasks that have it exchange tensors and the calls of a step by it; all the
rest, and whatever is between tasks of which one does not have it, is gRPC.

The protocol is a task's own choice, since each talks to all others. A process asks for
it in TF_CONFIG, which TensorFlow reads, or in VARIABLE, which our commands set: a
script that does not import tf_syncrep cannot use it, and is not disturbed.
"""

import functools
import json
import os
import sys
from collections.abc import MutableMapping

from tf_syncrep.python.distribute.errors import UsageError
from tf_syncrep.python.ops import op_library

GRPC, WIRE = "grpc", "grpc+tfs"
RPC_LAYERS = (WIRE, GRPC)
VARIABLE = "TF_SYNCREP_RPC_LAYER"
_LIBRARY_NAME = "libtf_syncrep_wire.so"


def asked_for(environ: MutableMapping[str, str]) -> str:
    """Returns what VARIABLE asks for, which is the wire where it is not set."""
    rpc_layer = environ.get(VARIABLE) or WIRE
    if rpc_layer not in RPC_LAYERS:
        raise UsageError(
            f"{VARIABLE} must be one of {', '.join(RPC_LAYERS)}. Received: "
            f"{rpc_layer!r}"
        )
    return rpc_layer


@functools.cache
def problem() -> str:
    """Loads the library into this process; returns why that failed, or ""."""
    path = os.path.join(os.path.dirname(op_library.library_path()), _LIBRARY_NAME)
    if not os.path.exists(path):
        return f"{path} was not built: this TensorFlow has no libtensorflow_cc"
    op_library.load()  # says so if it is for another TensorFlow
    import tensorflow as tf

    try:
        tf.load_library(path)
    except tf.errors.OpError as error:
        return " ".join(error.message.split())
    # It has registered its server, but perhaps not where this TensorFlow looks.
    try:
        tf.distribute.Server(tf.train.ServerDef(protocol=WIRE), start=False)
    except tf.errors.NotFoundError:
        return f"{path} has loaded, but this TensorFlow does not find its server"
    except tf.errors.InvalidArgumentError:
        pass  # its own error: it was asked for no task
    return ""


def usable(rpc_layer: str) -> str:
    """Returns a protocol for this process: gRPC, with a line, where it has no wire."""
    if rpc_layer == WIRE and problem():
        print(
            f"tf_syncrep: tasks talk to this one by gRPC alone: {problem()}",
            file=sys.stderr,
            flush=True,
        )
        return GRPC
    return rpc_layer


def choose(environ: MutableMapping[str, str]) -> None:
    """Makes TF_CONFIG name the protocol that this process can use, and was asked for.

    Nothing happens without parameter servers: other strategies send little this way.
    """
    try:
        config = json.loads(environ.get("TF_CONFIG", ""))
        has_ps = bool(config["cluster"]["ps"])
        now = config.get("rpc_layer") or GRPC
    except (ValueError, TypeError, KeyError, AttributeError):
        return  # for whoever reads it
    if not has_ps or now not in RPC_LAYERS:
        return
    wanted = WIRE if now == WIRE or environ.get(VARIABLE) == WIRE else GRPC
    rpc_layer = usable(wanted)
    if rpc_layer != now:
        environ["TF_CONFIG"] = json.dumps({**config, "rpc_layer": rpc_layer})
