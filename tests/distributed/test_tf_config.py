"""A bad TF_CONFIG is one line that names the entry, the rule and the value."""

import json

import commands
import pytest

from tf_syncrep.python.distribute import cluster


def config(jobs=None, task_type="worker", index=0, **more):
    jobs = jobs or {"ps": ["h:20001"], "worker": ["h:20002", "h:20003"]}
    return {"cluster": jobs, "task": {"type": task_type, "index": index}, **more}


NOT_SET = (
    "TF_CONFIG is not set. `tf-syncrep launch` sets it for each task of a cluster on "
    'this machine; elsewhere it must look like {"cluster": {"worker": ["host:port"], '
    '"ps": ["host:port"]}, "task": {"type": "worker", "index": 0}}'
)
TOO_MUCH = "(a number is too long, or objects are too deep in one another)"
TEXTS = [
    ("", NOT_SET, ""),
    (" \n", NOT_SET, ""),
    (
        "{cluster",
        "TF_CONFIG is not valid JSON (Expecting property name enclosed in double "
        "quotes: line 1 column 2 (char 1)).",
        "'{cluster'",
    ),
    (
        '{"cluster": {},\n}',
        "TF_CONFIG is not valid JSON (Expecting property name enclosed in double "
        "quotes: line 2 column 1 (char 16)).",
        "'{\"cluster\": {},\\n}'",
    ),
    ("[" * 100_000, f"TF_CONFIG is not valid JSON {TOO_MUCH}.", f"'{'[' * 199}..."),
    ("9" * 5000, f"TF_CONFIG is not valid JSON {TOO_MUCH}.", f"'{'9' * 199}..."),
    ("NaN", "TF_CONFIG must be a JSON object.", "nan"),
]

OF_CLUSTER = "TF_CONFIG['cluster'] must"
OF_JOBS = f"{OF_CLUSTER} have task types of letters, digits and _, the first a letter."
OF_PS = "TF_CONFIG['cluster']['ps'] must be a list of 'host:port' strings."
OF_FIRST = (
    "TF_CONFIG['cluster']['worker'][0] must be 'host:port', with an IPv6 address in "
    "brackets, and a port between 1 and 65535."
)
OF_TYPE = "TF_CONFIG['task']['type'] must be"
OF_TYPES = f"{OF_TYPE} one of the task types of the cluster ('ps', 'worker')."
OF_INDEX = "TF_CONFIG['task']['index'] must be"
OF_INTEGERS = f"{OF_INDEX} an integer that is not negative."
OF_NUMBER = f"{OF_INDEX} below the number of 'worker' tasks in the cluster, 2."
VALUES = [
    (["a"], "TF_CONFIG must be a JSON object.", ["a"]),
    ({}, "TF_CONFIG must have an entry 'cluster'.", {}),
    ({"cluster": 1}, f"{OF_CLUSTER} be a JSON object.", 1),
    ({"cluster": ["a:1"]}, f"{OF_CLUSTER} be a JSON object.", ["a:1"]),
    *((config({job: ["a:1"]}), OF_JOBS, job) for job in ("", "my job", "ps\n", "1")),
    (config({"ps": "a:1"}), OF_PS, "a:1"),
    (config({"ps": {"0": "a:1"}}), OF_PS, {"0": "a:1"}),
    (config({"ps": [1]}), OF_PS, [1]),
    (config({"ps": [None]}), OF_PS, [None]),
    *(
        (config({"worker": [address]}), OF_FIRST, address)
        for address in (
            *("", "localhost", ":1", "h:", "h:0", "h:65536", "h:-1", "h:99999999999"),
            *("http://h:1", "h:1/a", "user@h:1", "h h:1", "h:1\n", "::1:1", "[::1]"),
            *("h:\uff11", "h\u00e9:1", "a..b:1", ".a:1", f"{'a' * 64}:1"),
        )
    ),
    (
        config({"worker": ["h:1", "h:1"]}),
        "TF_CONFIG['cluster']['worker'][1] must differ from the address of "
        "TF_CONFIG['cluster']['worker'][0].",
        "h:1",
    ),
    (
        config({"worker": ["h:1"], "ps": ["g:1", "h:1"]}),
        "TF_CONFIG['cluster']['ps'][1] must differ from the address of "
        "TF_CONFIG['cluster']['worker'][0].",
        "h:1",
    ),
    (
        config({"chief": ["h:1", "h:2"], "worker": ["h:3"]}),
        "TF_CONFIG['cluster']['chief'] must have one address.",
        ["h:1", "h:2"],
    ),
    (
        config({"master": ["h:1", "h:2"]}),
        "TF_CONFIG['cluster']['master'] must have one address.",
        ["h:1", "h:2"],
    ),
    ({"cluster": {}}, "TF_CONFIG must have an entry 'task'.", {"cluster": {}}),
    ({"cluster": {}, "task": 3}, "TF_CONFIG['task'] must be a JSON object.", 3),
    (
        {"cluster": {}, "task": {"index": 0}},
        *("TF_CONFIG['task'] must have an entry 'type'.", {"index": 0}),
    ),
    (config(task_type=3), f"{OF_TYPE} a string.", 3),
    (config(task_type="master"), OF_TYPES, "master"),
    (config(task_type="Worker"), OF_TYPES, "Worker"),
    (config(index=2), OF_NUMBER, 2),
    (config(index="2"), OF_NUMBER, 2),
    (config(index=10**20), OF_NUMBER, 10**20),
    *(
        (config(index=index), OF_INTEGERS, index)
        for index in (-1, 1.0, True, None, [], "one", "-1", "", "1" * 10)
    ),
    (config(rpc_layer=1), "TF_CONFIG['rpc_layer'] must be a string.", 1),
    (
        config(rpc_layer="http"),
        "TF_CONFIG['rpc_layer'] must be 'grpc', which is what TensorFlow's servers "
        "speak.",
        "http",
    ),
]


@pytest.mark.parametrize(
    ("text", "rule", "received"),
    [
        *TEXTS,
        *((json.dumps(value), rule, repr(given)) for value, rule, given in VALUES),
    ],
)
def test_message_names_entry_rule_and_value(text, rule, received):
    with pytest.raises(cluster.ClusterConfigError) as raised:
        cluster.read_tf_config({"TF_CONFIG": text})
    said = str(raised.value)
    assert said == (f"{rule} Received: {received}" if received else rule)
    assert len(said.splitlines()) == 1


def test_what_cannot_be_shown_is_described():
    deep = "[" * 900 + "]" * 900
    shown = [f'{{"cluster": {value}}}' for value in (deep, "9" * 4200)]
    for text in shown:
        with pytest.raises(cluster.ClusterConfigError) as raised:
            cluster.read_tf_config({"TF_CONFIG": text})
        assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    ("given", "address"),
    [
        (config(), ("h", 20002)),
        (config(index="1"), ("h", 20003)),
        (config({"worker": ["[::1]:2222"]}), ("::1", 2222)),
        (config({"worker": ["my_host-1.example:2222"]}), ("my_host-1.example", 2222)),
        (config(rpc_layer=""), ("h", 20002)),
        (config(rpc_layer="grpc+verbs"), ("h", 20002)),
        # A coordinator does not listen at its address.
        (config({"chief": ["h:1"], "worker": ["h:1"]}), ("h", 1)),
    ],
)
def test_good_ones_are_taken(given, address):
    task = cluster.read_tf_config({"TF_CONFIG": json.dumps(given)})
    assert cluster.split_address(task.address) == address


@pytest.mark.parametrize("command", [["serve"], ["task", __file__]])
@pytest.mark.parametrize("text", [None, *(text for text, *_ in TEXTS[2:6])])
def test_serve_and_task_say_it_in_one_line_with_status_2(command, text):
    with pytest.raises(cluster.ClusterConfigError) as raised:
        cluster.read_tf_config({} if text is None else {"TF_CONFIG": text})
    result = commands.run(*command, env={"TF_CONFIG": text})
    assert result.output == f"tf-syncrep {command[0]}: error: {raised.value}"
    assert result.process.returncode == 2


@pytest.mark.parametrize("task_type", ["chief", "evaluator"])
def test_serve_says_what_is_not_served(task_type):
    given = json.dumps(config({"chief": ["a:1"]}, task_type))
    result = commands.run("serve", env={"TF_CONFIG": given})
    assert result.output == (
        f"tf-syncrep serve: error: {OF_TYPE} 'ps' or 'worker' for a task that is "
        f"served; others run the training script. Received: {task_type!r}"
    )
    assert result.process.returncode == 2
