r"""Makes a task of a TensorFlow cluster of a pod of a JobSet on Kubernetes.

    python deploy/jobset_task.py --workers 4 --ps 2 train.py

Sets TF_CONFIG by what Kubernetes says of the pod, then is `tf-syncrep task`. Replicated
jobs are called as TensorFlow calls the types of tasks: "chief", "worker", "ps", and
"evaluator" if there is one; each has one job, whose pods are its tasks.

A JobSet gives each pod a name that stays when it is started again, also on another
node: JOBSET-JOB-0-INDEX.JOBSET. In the environment must be JOBSET_NAME and
REPLICATED_JOB_NAME, from the pod's labels, which jobset.yaml does; Kubernetes itself
sets JOB_COMPLETION_INDEX.
"""

import argparse
import json
import os
import shutil
import sys
import sysconfig

_VARIABLES = ("JOBSET_NAME", "REPLICATED_JOB_NAME", "JOB_COMPLETION_INDEX")


def tf_config(workers: int, ps: int, port: int) -> str:
    """TF_CONFIG of this pod's task, in a cluster of so many."""
    jobset, job, index = (os.environ[name] for name in _VARIABLES)
    cluster = {
        task_type: [f"{jobset}-{task_type}-0-{i}.{jobset}:{port}" for i in range(size)]
        for task_type, size in (("chief", 1), ("worker", workers), ("ps", ps))
        if size
    }
    task = {"type": job, "index": int(index)}
    return json.dumps({"cluster": cluster, "task": task, "rpc_layer": "grpc"})


def main() -> None:
    """Sets TF_CONFIG and becomes `tf-syncrep task`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--ps", type=int, required=True)
    parser.add_argument("--port", type=int, default=2222)
    parser.add_argument("--run-script-on", default="coordinator", help="as `task` has")
    parser.add_argument("script", help="a Python file")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its own arguments")
    options = parser.parse_args()
    missing = [name for name in _VARIABLES if not os.environ.get(name)]
    if missing:
        parser.error(
            f"start it in a pod of a JobSet, with {', '.join(missing)} in its "
            "environment: see deploy/jobset.yaml"
        )
    os.environ["TF_CONFIG"] = tf_config(options.workers, options.ps, options.port)
    # Not `-m tf_syncrep`, which in a checkout is the source, without its library.
    folders = [sysconfig.get_path("scripts"), os.environ.get("PATH", "")]
    program = shutil.which("tf-syncrep", path=os.pathsep.join(folders))
    if program is None:
        parser.error(f"there is no tf-syncrep beside {sys.executable}, nor on PATH")
    command = ["task", "--run-script-on", options.run_script_on, options.script]
    os.execv(program, [program, *command, *options.args])


if __name__ == "__main__":
    main()
